"""Do searches for prompts find anything, and would chance have found it? `python -m benchmarks.prompts`

The SQL agent's writer is answered by the shipped policy, greedily. Each row is a search, repeated with
several seeds; a seed draws its own tasks, and half of the held-out ones report. The rows beside `Bootstrap`
are controls:

placebo     the same search and budget, but the rewards that it learns from and chooses by are coin tosses
            that follow from task and prompt: it finds a random choice among random demonstrations
deaf        GEPA, whose reflecting model adds a sentence at random and reads no score; the shipped policy
            can't read instructions, so its gain must be 0

The claim of a search is its paired difference to the placebo, never its gain alone.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

import lightning_core as lightning
from examples.sql.prompts import write_prompt
from examples.sql.tasks import load_tasks
from examples.sql.train import solve
from lightning_core.trainer.report import SearchSummary
from lightning_core.trainer.searching import halves, interval

WRITER = write_prompt("", "")[0]["content"]
BANK = (
    "Leave out rows that are deleted.",
    "Order by the number and take the first.",
    "Prices are in cents.",
    "Large means above the average.",
    "Answer with one query and nothing else.",
    "Use only the tables that are listed.",
)
ARMS = ("bootstrap", "placebo", "deaf")


def run_arm(arm: str, seed: int, folder: Path, *, budget: int, tasks: int) -> SearchSummary:
    """One search, from its own folder."""
    train, held_out = (load_tasks(split, ".data/sql", tasks, seed) for split in ("train", "validation"))
    validation = [lightning.Task(id=row["id"], input=dict(row), split="validation") for row in held_out]
    search: Any = lightning.Bootstrap(budget=budget)
    if arm == "deaf":
        search = lightning.GEPA(budget=budget, reflection=blind(seed), minibatch=4)
    trainer = lightning.Trainer(
        agents=["write_query", "check_query", "rewrite_query"],
        prompts={"write_query": WRITER},
        algorithm=search,
        backend=lightning.LocalBackend("tiny", threads=1),
        folder=folder,
        seed=seed,
        progress=False,
    )
    tossed = {task.id for task in halves(validation, seed)[0]} if arm == "placebo" else set()
    return trainer.fit(judged(seed, tossed), train=train, validation=validation).searches[0]


def judged(seed: int, tossed: set[str]) -> Callable[[lightning.Task], Any]:
    """The app with its reward, or with coin tosses for training tasks and these; none if there are none."""

    async def run(task: lightning.Task) -> float:
        reward = await solve(task)
        if not tossed or (task.split == "validation" and task.id not in tossed):
            return reward
        told = f"{seed}/{task.id}/{lightning.prompt('write_query', WRITER)}"
        return float(hashlib.blake2b(told.encode()).digest()[0] < 128)

    return run


def blind(seed: int) -> Callable[[str], str]:
    """A proposer that adds a sentence of the bank at random."""
    drawn = random.Random(f"blind-{seed}")

    def propose(question: str) -> str:
        before = re.findall(r"```\n(.*?)\n```", question, re.DOTALL)[0]
        return f"```\n{before} {drawn.choice(BANK)}\n```"

    return propose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=240, help="rollouts of a search (default: 240)")
    parser.add_argument("--tasks", type=int, default=40, help="training and held-out tasks (default: 40)")
    options = parser.parse_args()
    found: dict[str, list[SearchSummary]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as parent:
        for seed in range(options.seeds):
            for arm in ARMS:
                folder = Path(parent) / f"{arm}-{seed}"
                summary = run_arm(arm, seed, folder, budget=options.budget, tasks=options.tasks)
                found[arm].append(summary)
                Console().print(f"seed {seed}, {arm}: {summary.said()}", highlight=False, soft_wrap=True)
    Console().print(table(found))


def table(found: dict[str, list[SearchSummary]]) -> Table:
    """A row for each search: means over the seeds, and 95 % intervals bootstrapped over them."""
    made = Table(title=f"SQL agent, shipped policy, {len(found['placebo'])} seeds")
    for column in (
        "search",
        "chose by",
        "reporting: seed",
        "chosen",
        "gain (95 %)",
        "more than placebo (95 %)",
    ):
        made.add_column(column, justify="left" if column == "search" else "right")
    placebo = [each.gain for each in found["placebo"]]
    for arm, runs in found.items():
        gains = [each.gain for each in runs]
        beyond = [gain - other for gain, other in zip(gains, placebo, strict=True)]
        made.add_row(
            arm,
            " to ".join(f"{fmean(each.choosing[place] for each in runs):.2f}" for place in (0, 1)),
            f"{fmean(each.reporting[0] for each in runs):.2f}",
            f"{fmean(each.reporting[1] for each in runs):.2f}",
            _with_interval(gains),
            "" if arm == "placebo" else _with_interval(beyond),
        )
    return made


def _with_interval(values: list[float]) -> str:
    low, high = interval(values, 0)
    return f"{fmean(values):+.2f} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    main()
