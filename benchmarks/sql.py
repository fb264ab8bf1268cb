"""The main result: held-out success of the SQL agent before and after training.

    python -m benchmarks.sql

Trains from two warm starts with three seeds each (`--seeds`), evaluates every run once, before and after,
on the test split, and writes the table of `docs/results.md`, `benchmarks/results/sql.json` and a plot. Runs
that are already there are not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.summary import Summary

RUNS = Path("runs/results")
JSON = Path("benchmarks/results/sql.json")
PAGE = Path("docs/results.md")
PLOT = Path("docs/results-sql.png")
BEGIN, END = "<!-- sql table -->", "<!-- end of sql table -->"
NEEDS_REWRITER = "active"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="training seeds for each warm start")
    parser.add_argument("--tasks", type=int, default=200, help="test tasks")
    options = parser.parse_args()
    runs = [
        train(warm, model, seed, options.tasks)
        for warm, model in (("0", "tiny"), ("1", second_warm_start()))
        for seed in range(options.seeds)
    ]
    report(runs)


def second_warm_start() -> str:
    """The policy that the recipe makes with seed 1; made when it is not there (some 15 minutes)."""
    folder = Path(".data/tiny-1")
    if not folder.is_dir():
        command = [sys.executable, "-m", "recipes.tiny", "--seed", "1", "--out", str(folder)]
        subprocess.run(command, check=True)
    return str(folder)


def train(warm: str, model: str, seed: int, tasks: int) -> Path:
    """One run, unless its summary is there already; returns its folder."""
    folder = RUNS / f"warm{warm}-seed{seed}"
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "lightning_core.cli", "train", "examples/sql/train.py"]
        command += ["--model", model, "--seed", str(seed), "--folder", str(folder)]
        command += ["--resume"] if (folder / "run.json").exists() else []
        command += ["--", "--held-out", "test", "--held-out-tasks", str(tasks)]
        subprocess.run(command, check=True)
    return folder


def report(folders: list[Path]) -> None:
    """Write JSON, table and plot from the runs' own records."""
    summaries = [Summary.model_validate_json((folder / "summary.json").read_bytes()) for folder in folders]
    rewriting = [
        asyncio.run(solved_by_rewriting(folder, s)) for folder, s in zip(folders, summaries, strict=True)
    ]
    rows = table(folders, summaries)
    forms = form_table(summaries)
    agents = agent_table(summaries)
    JSON.parent.mkdir(parents=True, exist_ok=True)
    JSON.write_text(
        json.dumps(
            {
                "runs": {f.name: s.model_dump(mode="json") for f, s in zip(folders, summaries, strict=True)},
                "solved_by_rewriting": dict(zip((f.name for f in folders), rewriting, strict=True)),
            },
            indent=1,
        )
    )
    text = "\n".join(
        [
            rows,
            "",
            "By form of question:",
            "",
            forms,
            "",
            "By agent:",
            "",
            agents,
            "",
            rewriter_table(rewriting),
        ]
    )
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:start]}\n{text}\n{page[end:]}")
    plot(folders, summaries)
    print(text)


def evaluations(summaries: Iterable[Summary]) -> list[tuple[Any, Any]]:
    return [(s.before, s.after) for s in summaries if s.before is not None and s.after is not None]


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation over runs."""
    return f"{fmean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def table(folders: list[Path], summaries: list[Summary]) -> str:
    """One line for each run, then mean ± standard deviation over the runs."""
    lines = [
        "| warm start, seed | sampled before | after | gain | greedy before | after | gain | training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    columns: list[list[float]] = [[] for _ in range(6)]
    for folder, summary in zip(folders, summaries, strict=True):
        assert summary.before is not None
        assert summary.after is not None
        cells = []
        for kind in ("sampled", "greedy"):
            first, last = getattr(summary.before, kind), getattr(summary.after, kind)
            cells += [first, last, last - first]
        for column, value in zip(columns, cells, strict=True):
            column.append(value)
        shown = " | ".join(f"{value:.3f}" for value in cells)
        lines.append(f"| {folder.name} | {shown} | {summary.train_seconds:.0f} s |")
    times = [summary.train_seconds for summary in summaries]
    seconds = f"{fmean(times):.0f} ± {stdev(times):.0f}" if len(times) > 1 else f"{times[0]:.0f}"
    lines.append(f"| **mean ± sd** | {' | '.join(map(spread, columns))} | {seconds} s |")
    return "\n".join(lines)


def form_table(summaries: list[Summary]) -> str:
    """Success for each form of question, mean ± standard deviation over the runs."""
    pairs = evaluations(summaries)
    lines = ["| form | sampled before | after | greedy before | after |", "|---|---|---|---|---|"]
    for form in sorted({name for first, _ in pairs for name in first.detail["sampled"].by}):
        cells = [
            spread([pair[when].detail[kind].by[form] for pair in pairs])
            for kind in ("sampled", "greedy")
            for when in (0, 1)
        ]
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def agent_table(summaries: list[Summary]) -> str:
    """For each agent: calls per rollout, and success of the rollouts in which it acted (sampled)."""
    pairs = evaluations(summaries)
    lines = [
        "| agent | trained | calls per task before | after | success where it acted before | after |",
        "|---|---|---|---|---|---|",
    ]
    for agent in sorted(summaries[0].agents):
        cells = []
        for value in ("calls", "success"):
            for when in (0, 1):
                scores = [pair[when].detail["sampled"] for pair in pairs]
                cells.append(
                    spread(
                        [
                            score.agents[agent].calls / score.tasks
                            if value == "calls"
                            else score.agents[agent].success
                            for score in scores
                            if agent in score.agents
                        ]
                    )
                )
        trained = "yes" if summaries[0].agents[agent].trained else "no"
        lines.append(f"| {agent} | {trained} | {' | '.join(cells)} |")
    return "\n".join(lines)


async def solved_by_rewriting(folder: Path, summary: Summary) -> dict[str, dict[str, float]]:
    """Of the form that needs the rewriter: share solved at the first query, and after rewriting."""
    found = {}
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        for name, step in (("before", 0), ("after", summary.steps)):
            rollouts = [
                r
                for r in await store.find_rollouts(summary.run, step=step, split="validation")
                if r.task.input["form"] == NEEDS_REWRITER and r.sampling.temperature > 0
            ]
            calls = await store.get_calls([r.id for r in rollouts])
            rewritten = {r.id for r in rollouts if any(c.agent == "rewrite_query" for c in calls[r.id])}
            solved = {r.id for r in rollouts if r.reward == 1.0}
            found[name] = {
                "first query": len(solved - rewritten) / len(rollouts),
                "after rewriting": len(solved & rewritten) / len(rollouts),
            }
    return found


def rewriter_table(rewriting: list[dict[str, dict[str, float]]]) -> str:
    lines = [
        f"The form `{NEEDS_REWRITER}`, sampled: share solved at once, and by the rewriter.",
        "",
        "| | before | after |",
        "|---|---|---|",
    ]
    for how in ("first query", "after rewriting"):
        cells = [spread([run[when][how] for run in rewriting]) for when in ("before", "after")]
        lines.append(f"| {how} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(folders: list[Path], summaries: list[Summary]) -> None:
    """Training reward of every run, as the running mean of five steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for folder, summary in zip(folders, summaries, strict=True):
        rewards = asyncio.run(rewards_of(folder, summary.run))
        axes.plot(range(1, len(rewards) + 1), rewards, label=folder.name)
    axes.set(xlabel="step (64 rollouts)", ylabel="training reward, mean of five steps", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(PLOT, dpi=120)


async def rewards_of(folder: Path, run: str) -> list[float]:
    from lightning_core.trainer.report import running_mean

    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        return running_mean([entry.values["reward"] for entry in await store.list_metrics(run)])


if __name__ == "__main__":
    main()
