"""Laws of a pool where a worker that it needs can't be started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lightning_core.errors import WorkerError
from lightning_core.records.types import Attempt, Rollout, Status, Task
from lightning_core.runner import pool
from lightning_core.runner.outcome import AttemptOutcome, Solve
from lightning_core.runner.pool import WorkerPool
from lightning_core.runner.runner import Runner
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.scope import Scope


class OneUse:
    """A worker that is lost with its first attempt."""

    def __init__(self, *, ends: bool = True) -> None:
        self.alive = True
        self.ends = ends

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> AttemptOutcome:
        begun()
        self.alive = False
        return AttemptOutcome(reward=1.0)

    async def end(self) -> bool:
        if self.alive or self.ends:
            return True
        self.ends = True
        raise RuntimeError("it could not be ended")


@dataclass
class Starts:
    """Workers that start, or do not, as the list says; after its end, always."""

    those: list[OneUse | Exception] = field(default_factory=list)
    tries: int = 0

    def pool(self, solve: Solve) -> WorkerPool:
        return WorkerPool(self.start, 1)

    async def start(self) -> OneUse:
        self.tries += 1
        made = self.those.pop(0) if self.those else OneUse()
        if isinstance(made, Exception):
            raise made
        return made


def scope_for(attempt: Attempt) -> Scope:
    return Scope(attempt.rollout.id, attempt.number, "http://127.0.0.1:1", token="key")


async def play(starts: Starts, count: int) -> tuple[list[Status], BaseException | None]:
    """Returns the ends of the rollouts, and the runner's error if it ended before them."""
    asked = [
        Rollout(id=f"r{i}", run_id="run", task=Task(input={}), group_id="g", step=0) for i in range(count)
    ]
    async with MemoryStore() as store:
        await store.enqueue(asked)
        stop = asyncio.Event()
        runner = Runner(
            lambda task: 1.0,
            store,
            run_id="run",
            scope_for=scope_for,
            workers=starts,  # type: ignore[arg-type]
        )
        serving = asyncio.create_task(runner.serve(stop))
        finished = asyncio.create_task(store.wait_finished([one.id for one in asked]))
        await asyncio.wait({serving, finished}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        finished.cancel()
        (error,) = await asyncio.gather(serving, return_exceptions=True)
        return [one.status for one in await store.find_rollouts("run")], error


async def test_a_worker_that_can_t_be_started_for_a_while_costs_no_rollout() -> None:
    starts = Starts([OneUse(), OSError("no memory"), WorkerError("no room")])
    assert await play(starts, 3) == ([Status.SUCCEEDED] * 3, None)
    assert starts.tries >= 5


@pytest.mark.parametrize(
    ("never", "told"),
    [
        (OSError("no memory"), "no worker process could be started: no memory"),
        (WorkerError("it can't load the function"), "it can't load the function"),
    ],
)
async def test_the_runner_ends_when_no_worker_can_be_started_and_gives_all_rollouts_back(
    never: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "START_SECONDS", 0.3)
    statuses, error = await play(Starts([OneUse(), *[never] * 100]), 4)
    assert isinstance(error, WorkerError)
    assert str(error) == told
    assert sorted(statuses) == [Status.QUEUED] * 3 + [Status.SUCCEEDED]


async def test_any_other_error_of_a_start_ends_the_runner_at_once() -> None:
    starts = Starts([OneUse(), RuntimeError("a bug")])
    statuses, error = await play(starts, 2)
    assert (str(error), starts.tries) == ("a bug", 2)
    assert sorted(statuses) == [Status.QUEUED, Status.SUCCEEDED]


async def test_so_does_a_lost_worker_that_can_t_be_ended() -> None:
    statuses, error = await play(Starts([OneUse(ends=False)]), 2)
    assert str(error) == "it could not be ended"
    assert sorted(statuses) == [Status.QUEUED, Status.SUCCEEDED]
