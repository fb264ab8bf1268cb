"""Run every app once and print what was seen: `python -m tests.apps`; `--write` puts the table into the docs.

In a process of its own, as apps leave clients open. With `--model tiny` the local engine answers in place
of the script: what the apps make of its replies is nonsense, but each call must be answered, or refused by
name.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from lightning_core.dialects.upstream import Upstream
from tests.apps.stage import App, Outcome, Script, play, play_again, prepare

FRAMEWORKS = {
    "langgraph": ("LangGraph", "langgraph"),
    "autogen": ("AutoGen", "autogen_agentchat"),
    "agents": ("OpenAI Agents SDK", "agents"),
    "crewai": ("CrewAI", "crewai"),
    "pydantic_ai": ("Pydantic AI", "pydantic_ai"),
    "smolagents": ("smolagents", "smolagents"),
    "agent_framework": ("Microsoft Agent Framework", "lightning_agent_framework"),
    "google_adk": ("Google ADK", "lightning_google_adk"),
    "llama_index": ("LlamaIndex", "lightning_llama_index"),
}
"""How the apps' modules begin, what the framework is called, and its package."""
PAGE = Path(__file__).parents[2] / "docs/frameworks.md"
_TABLE = re.compile(r"(?<=<!-- python -m tests.apps --write -->\n).*?(?=<!-- end -->)", re.DOTALL)
_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    """The findings about one app."""

    module: str
    name: str
    framework: str
    runs: bool
    """Whether it ran to its end and came to what its author meant."""
    right: int
    """Calls that were recorded under their agent's name."""
    wrong: list[str]
    noticed: int
    lost: int
    refused: list[str]
    unexpected: str
    """How the number of calls differs from what the script makes; nothing where a model answers."""
    error: str
    again: str = ""
    """How its calls differ when it runs again with the replies on record; nothing where a model answers."""


def modules() -> list[str]:
    """The apps whose framework is installed."""
    found = sorted(path.stem for path in Path(__file__).parent.glob("*_*.py") if path.stem[:2] != "__")
    of = {name: next((key for key in FRAMEWORKS if name.startswith(key)), None) for name in found}
    return [name for key in FRAMEWORKS for name in found if of[name] == key and find_spec(FRAMEWORKS[key][1])]


async def run_all(names: Sequence[str], model: str | None) -> list[Row]:
    """Each app after the other."""
    async with AsyncExitStack() as stack:
        engine: Upstream | None = None
        if model is not None:
            from lightning_core.backends.local import LocalBackend

            backend = LocalBackend(model)
            await backend.start()
            stack.push_async_callback(backend.close)
            engine = backend.upstream
        rows = []
        for name in names:
            app: App = importlib.import_module(f"tests.apps.{name}").APP
            outcome = await play(app, engine or Script(roles=app.roles), _SECONDS)
            row = judge(name, app, outcome, scripted=engine is None)
            rows.append(row if engine else replace(row, again=await play_again(app)))
    return rows


def judge(module: str, app: App, outcome: Outcome, *, scripted: bool) -> Row:
    wrong = outcome.wrong(app.roles)
    differs = outcome.agents() != app.calls
    key = next(key for key in FRAMEWORKS if module.startswith(key))
    return Row(
        module=module,
        name=app.name,
        framework=FRAMEWORKS[key][0],
        runs=outcome.error is None and app.answer in outcome.said,
        right=len(outcome.recorded) - len(wrong),
        wrong=wrong,
        noticed=outcome.noticed,
        lost=outcome.lost,
        refused=outcome.refused,
        unexpected=f"{dict(outcome.agents())}, not {app.calls}" if scripted and differs else "",
        error="" if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
    )


def table(rows: Sequence[Row]) -> str:
    """The page's table."""
    lines = [
        "| app | framework | runs | agents named right | calls right / noticed / lost |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        total = row.right + len(row.wrong)
        cells = [row.name, row.framework, "yes" if row.runs else "no", f"{row.right} of {total}"]
        lines.append(f"| {' | '.join(cells)} | {row.right} / {row.noticed} / {row.lost} |")
    return "\n".join(lines) + "\n"


def merged(before: str, now: str) -> str:
    """The page's table with these rows in it: no environment has all frameworks."""
    head = now.splitlines()[:2]
    rows = {line.split(" | ")[0]: line for text in (before, now) for line in text.splitlines()[2:]}
    order = [name for name, _ in FRAMEWORKS.values()]
    lines = sorted(rows.values(), key=lambda line: (order.index(line.split(" | ")[1]), line))
    return "\n".join([*head, *lines]) + "\n"


def main() -> None:
    """Exit with 1 if a call is lost or named wrong, or if an app that follows its script does not end."""
    parser = argparse.ArgumentParser(prog="python -m tests.apps", description=__doc__)
    parser.add_argument("apps", nargs="*", help="modules of tests/apps (default: all)")
    parser.add_argument("--model", help="what answers: a model for the local engine (default: the script)")
    parser.add_argument(
        "--write", action="store_true", help="put these rows into the table of docs/frameworks.md"
    )
    parser.add_argument("--out", type=Path, help="write the rows to this file, as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of frameworks, about themselves
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        rows = asyncio.run(run_all(options.apps or modules(), options.model))
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows]))
    if options.write:
        PAGE.write_text(_TABLE.sub(lambda found: merged(found[0], table(rows)), PAGE.read_text()))
    sys.stdout.write(f"{table(rows)}\n")
    for row in rows:
        for problem in (*row.wrong, *row.refused, row.unexpected, row.error, row.again):
            if problem:
                sys.stdout.write(f"{row.module}: {problem[:300]}\n")
    sys.exit(any(row.lost or row.wrong or not (row.runs or options.model) for row in rows))


if __name__ == "__main__":
    main()
