"""How benchmarks show what they measured: a table on the screen, and JSON in benchmarks/results."""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: what each candidate reached in each repeat; higher is better."""

    setting: str
    baseline: str
    values: dict[str, list[float]]
    unit: str

    def ratios(self, candidate: str) -> list[float]:
        """Candidate over baseline, within each repeat."""
        pairs = zip(self.values[candidate], self.values[self.baseline], strict=True)
        return [value / base for value, base in pairs]


def spread(values: list[float], digits: int) -> str:
    """Median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def publish(name: str, title: str, rows: list[Row], notes: dict[str, Any] | None = None) -> Path:
    """Print the table and write results/NAME.json; returns its path."""
    table = Table(title=f"{title}: median (range) of {len(next(iter(rows[0].values.values())))} repeats")
    for heading in ("setting", "candidate", "measured", "ratio to baseline"):
        table.add_column(heading)
    for row in rows:
        for candidate, values in row.values.items():
            ratio = "baseline" if candidate == row.baseline else spread(row.ratios(candidate), 2)
            table.add_row(row.setting, candidate, f"{spread(values, 0)} {row.unit}", ratio)
    Console().print(table)
    record = {
        "benchmark": name,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "notes": notes or {},
        "rows": [
            {
                "setting": row.setting,
                "unit": row.unit,
                "baseline": row.baseline,
                "values": row.values,
                "ratios": {c: row.ratios(c) for c in row.values if c != row.baseline},
            }
            for row in rows
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
