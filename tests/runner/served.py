"""A runner, a store and the real gateway over a scripted engine."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.prompts import Pinned, Prompt
from lightning_core.records.types import Attempt, Rollout, Task
from lightning_core.runner.ray_workers import RayWorkers
from lightning_core.runner.runner import Runner
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import until
from tests.runner.playing import PROMPTED, SEED

AGENTS = ("writer", "reader")
"""Agents that are trained."""
BETTER = "Answer in one word, in French."
"""The prompt that rollouts are pinned to."""


@dataclass
class ServedRunner:
    """The parts of a test of workers."""

    house: House
    runner: Runner
    stop: asyncio.Event
    serving: asyncio.Task[None]

    @property
    def store(self) -> Store:
        return self.house.store

    async def play(self, asked: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts, once all are finished."""
        await self.store.enqueue(asked)
        finished = await self.store.wait_finished([one.id for one in asked], timeout=300)
        assert len(finished) == len(asked), "not all rollouts have ended within five minutes"
        return finished


@asynccontextmanager
async def serve_runner(
    workers: int | RayWorkers | None, solve: Callable[[Task], Any], **options: Any
) -> AsyncIterator[ServedRunner]:
    """A runner at work inside the block."""
    async with MemoryStore() as store, open_house(store=store, agents=AGENTS) as house:

        def scope_for(attempt: Attempt) -> Scope:
            token = house.tokens.issue(attempt.rollout, attempt.number)
            pinned = {PROMPTED: Pinned(Prompt(SEED), BETTER)}
            return Scope(attempt.rollout.id, attempt.number, house.url, token, AGENTS, pinned)

        with instrument(lambda: None):
            runner = Runner(solve, store, run_id="run", scope_for=scope_for, workers=workers, **options)
            stop = asyncio.Event()
            serving = asyncio.create_task(runner.serve(stop))
            try:
                yield ServedRunner(house, runner, stop, serving)
            finally:
                stop.set()
                await serving


def rollouts(play: str, count: int, *, attempts: int = 1, **given: Any) -> list[Rollout]:
    """Makes rollouts of the task's function; see `playing`."""
    return [
        Rollout(
            id=f"{play}-{next(_numbers)}",
            run_id="run",
            task=Task(input={"play": play, "i": i, **given}),
            group_id="g",
            step=0,
            max_attempts=attempts,
        )
        for i in range(count)
    ]


_numbers = itertools.count()


async def begun(path: Path) -> int:
    """The process in which the attempt that was to write there runs, once it does."""
    await until(path.exists, seconds=60)
    return written(path)


def written(path: Path) -> int:
    return int(path.read_text())


def lives(pid: int) -> bool:
    """Whether there is such a process, other than one that nobody has buried yet."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
