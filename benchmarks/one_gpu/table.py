"""The results of the parts as Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SKIPPED = 77
"""Status of a part that needs what is not installed."""


def read(folder: Path, name: str) -> dict[str, Any]:
    """Returns the results that a part has written so far."""
    path = folder / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def markdown(folder: Path) -> str:
    """All parts that have written something, and how each ended."""
    machine = read(folder, "machine")
    facts = ", ".join(f"{name} {value}" for name, value in machine.get("facts", {}).items())
    lines = ["# One GPU", "", facts, ""]
    for name, ended in read(folder, "parts").items():
        said = " ".join(ended.get("said", ())[-1:])
        lines.append(f"- {name}: {ended['status']}, {ended['seconds']} s. {said}".rstrip())
    for name in ("engine-exact", "update-exact", "memory", "training", "engine", "update", "step", "longest"):
        found = read(folder, name)
        if rows := found.get("rows"):
            lines += ["", f"## {found['title']}", "", *table(rows)]
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line for each row; the columns are those of all rows, in their order."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(show(row.get(name, "")) for name in columns) for row in rows]
    return [f"| {line} |" for line in lines]


def show(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "/").replace("\n", " ")
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
