"""From the store to training rows: `python -m benchmarks.rows`, in CPU milliseconds of one rollout.

A conversation grows by each call, whose prompt is all that came before. One of 1,000 short turns and one of
60 long ones lie in a SQLite file. Measured is what a trainer does with them: it reads the calls, makes a
trajectory of them, and of this the rows for an engine of plain sequences or the packs of the local backend.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.report import spread
from benchmarks.stores.conversation import calls
from lightning_core.backends.rows import make_rows, report_rows
from lightning_core.experience.trajectories import make_packs, report_merge
from lightning_core.experience.transitions import to_trajectories
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Rollout, Status, Task
from lightning_core.trainer.parts import open_store

SHAPES = {1000: (5, 4), 60: (500, 67)}
"""New words and words of the reply, of three tokens each, by the number of turns."""
T = TypeVar("T")


async def record(url: str, turns: int) -> Rollout:
    """A rollout that ended with its conversation in the store."""
    asked = Rollout(id="r", run_id="run", task=Task(input={}), group_id="g", step=0)
    new, reply = SHAPES[turns]
    async with open_store(url, load_plugins()) as store:
        await store.enqueue([asked])
        await store.lease("w", 1, 600.0)
        for call in calls("r", turns, new=new, reply=reply):
            await store.add_call(call)
    return asked.model_copy(update={"status": Status.SUCCEEDED, "reward": 1.0, "attempts": 1})


async def prepare(url: str, rollout: Rollout, spent: dict[str, list[float]]) -> int:
    """Prepare the rollout for an update. `spent` gets milliseconds; returns the tokens in prompts."""

    def timed(name: str, step: Callable[[], T]) -> T:
        started = time.process_time()
        found = step()
        spent[name].append(1e3 * (time.process_time() - started))
        return found

    async with open_store(url, load_plugins()) as store:
        gc.collect()
        started = time.process_time()
        found = await store.get_calls([rollout.id])
        spent["read"].append(1e3 * (time.process_time() - started))
    (made,) = timed("trajectory", lambda: to_trajectories([rollout], found, {rollout.id: []}, lowest=False))
    batch = [replace(made, transitions=tuple(replace(t, advantage=1.0) for t in made.transitions))]
    weights = {t.key: 1.0 for t in batch[0].transitions}
    rows = timed("rows", lambda: make_rows(batch, weights))
    timed("report of rows", lambda: report_rows(batch, rows))
    packs = timed("packs", lambda: make_packs(batch, weights, pack_tokens=1 << 17))
    timed("report of packs", lambda: report_merge(batch, packs))
    spent["trajectory and rows"].append(spent["trajectory"][-1] + spent["rows"][-1])
    return sum(len(t.prompt_ids) for t in batch[0].transitions)


async def measure(turns: int, repeats: int, table: Table) -> None:
    """Adds a line for each step."""
    spent: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        rollout = await record(url, turns)
        tokens = statistics.median([await prepare(url, rollout, spent) for _ in range(repeats + 1)])
    for step, all_of_them in spent.items():
        table.add_row(f"{turns:,}", f"{tokens:,.0f}", step, spread(all_of_them[1:], 1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="after one that does not count (default: 5)")
    asked = parser.parse_args()
    table = Table("turns", "tokens in prompts", "step", "CPU ms, median (range)")
    for turns in SHAPES:
        asyncio.run(measure(turns, asked.repeats, table))
    Console().print(table)


if __name__ == "__main__":
    main()
