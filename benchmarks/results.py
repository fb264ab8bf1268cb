"""The results of the examples: held-out success before and after training, over several seeds.

    python -m benchmarks.results             # every example
    python -m benchmarks.results sql plain   # these two
    python -m benchmarks.results calc --seeds 3 --tasks 200

Trains each example once for every seed (and warm start, where it has several), evaluates every run before
and after on the test split, and writes its tables into `docs/results.md`, `benchmarks/results/NAME.json` and
the plot `docs/results-NAME.png`. Runs that are already there are not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from benchmarks.examples import EXAMPLES, Example
from benchmarks.tables import agent_table, part_table, seed_table
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.report import reward_curve, running_mean
from lightning_core.trainer.summary import Summary

RUNS = Path("runs/results")
RECORDS = Path("benchmarks/results")
PAGE = Path("docs/results.md")
NEXT_SECTION = "\n## Benchmarks\n"
"""Sections of examples stand before this heading."""

Record = dict[str, Any]
"""What `NAME.json` holds: the runs' summaries by name, and what the example's own table is made of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("examples", nargs="*", metavar="example", help=f"of {', '.join(EXAMPLES)}; or all")
    parser.add_argument("--seeds", type=int, default=3, help="training seeds for each warm start")
    parser.add_argument("--tasks", type=int, default=200, help="test tasks")
    options = parser.parse_args()
    for unknown in sorted(set(options.examples) - set(EXAMPLES)):
        parser.error(f"there is no example {unknown!r}; there are {', '.join(EXAMPLES)}")
    for name in options.examples or EXAMPLES:
        publish(EXAMPLES[name], make_runs(EXAMPLES[name], options.seeds, options.tasks))


def make_runs(example: Example, seeds: int, tasks: int) -> list[Path]:
    """The folders of all runs of an example, made where they are missing."""
    folders = []
    for warm, model in example.warm_starts:
        chosen = ["--model", model()] if model is not None else []
        for seed in range(seeds):
            folder = RUNS / example.name / f"{warm}seed{seed}"
            train(example, folder, ["--seed", str(seed), *chosen], tasks)
            folders.append(folder)
    return folders


def train(example: Example, folder: Path, settings: list[str], tasks: int) -> None:
    """One run, unless its summary is there already."""
    if (folder / "summary.json").exists():
        return
    command = [sys.executable, "-m", "lightning_core.cli", "train", example.script, *settings]
    command += ["--folder", str(folder)]
    command += ["--resume"] if (folder / "run.json").exists() else []
    subprocess.run([*command, "--", "--held-out", "test", "--held-out-tasks", str(tasks)], check=True)


def publish(example: Example, folders: list[Path]) -> None:
    """Write an example's JSON, tables and plot from its runs' own records."""
    summaries = {f.name: Summary.model_validate_json((f / "summary.json").read_bytes()) for f in folders}
    record: Record = {"runs": {name: s.model_dump(mode="json") for name, s in summaries.items()}}
    if example.extra is not None:
        record[example.extra.key] = {
            folder.name: asyncio.run(example.extra.measure(folder, summaries[folder.name]))
            for folder in folders
        }
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{example.name}.json").write_text(json.dumps(record, indent=1))
    text = render(example, record)
    PAGE.write_text(insert(PAGE.read_text(), example, text))
    plot(example, {folder: summaries[folder.name] for folder in folders})
    print(text)


def render(example: Example, record: Record) -> str:
    """The tables of an example as Markdown."""
    summaries = {name: Summary.model_validate(fields) for name, fields in record["runs"].items()}
    runs = list(summaries.values())
    parts = [seed_table(example.runs_are, summaries)]
    if by_part := part_table(example.parts.split()[0], runs):
        parts += [f"By {example.parts}:", by_part]
    parts += ["By agent:", agent_table(runs)]
    if example.extra is not None:
        parts.append(example.extra.table(list(record[example.extra.key].values())))
    return "\n\n".join(parts)


class Section(Protocol):
    """What has a part of the page."""

    @property
    def name(self) -> str:
        """Of its marks and its plot."""

    @property
    def title(self) -> str: ...
    @property
    def command(self) -> str:
        """Makes it again."""


def insert(page: str, section: Section, text: str) -> str:
    """The page with the text between the section's marks; with a section for it, if it had none."""
    begin, end = f"<!-- {section.name} table -->", f"<!-- end of {section.name} table -->"
    if begin not in page:
        plot = f"![training reward of every run](results-{section.name}.png)"
        command = f"    {section.command}"
        written = "\n\n".join((f"## {section.title}", command, f"{begin}\n{end}", f"{plot}\n"))
        before, heading, after = page.partition(NEXT_SECTION)
        page = f"{before}\n{written}{heading}{after}"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def plot(example: Example, runs: Mapping[Path, Summary]) -> None:
    """Training reward of every run, as the running mean of five steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for folder, summary in runs.items():
        rewards = asyncio.run(rewards_of(folder, summary.run))
        axes.plot(range(1, len(rewards) + 1), rewards, label=folder.name)
    size = max(summary.rollouts // max(summary.steps, 1) for summary in runs.values())
    axes.set(xlabel=f"step ({size} rollouts)", ylabel="training reward, mean of five steps", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(PAGE.with_name(f"results-{example.name}.png"), dpi=120)


async def rewards_of(folder: Path, run: str) -> list[float]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        return running_mean(reward_curve(await store.list_metrics(run))[1])


if __name__ == "__main__":
    main()
