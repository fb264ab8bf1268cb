"""`executor="asyncio"`: attempts run in this very process, async functions on its loop, others in threads.

The cheapest place, and the one where the app's clients and caches are shared by all rollouts. Async functions
are cancelled. A function in a thread can't be stopped: it is left behind, its late calls are nobody's, and
its slot goes on. An endless loop inside an async function stops the whole loop: give such apps `Processes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.errors import RewardError
from lightning_core.runner.calling import Ended, start
from lightning_core.runner.command import Command
from lightning_core.runner.executor import Outcome, Solve
from lightning_core.runner.failure import describe
from lightning_core.runner.reward import to_reward
from lightning_core.runner.warded import PATIENCE_SECONDS
from lightning_core.tracing.scope import Scope, rollout_scope
from lightning_core.types import Task

GRACE_SECONDS = 2.0
"""How long a cancelled function may take to end before its slot is taken from it."""


@dataclass(frozen=True, slots=True)
class InProcess:
    """Run in the runner's own process."""

    def crew(self, solve: Solve, concurrency: int) -> InProcessCrew:
        """There is nothing to start, and no limit of its own. Raises ConfigError for a program that is not
        on this machine."""
        if isinstance(solve, Command):
            solve.check()
        return InProcessCrew(solve)


class InProcessCrew:
    """Runs a function here."""

    slots: int | None = None

    def __init__(self, solve: Solve) -> None:
        self._solve = solve
        ending = solve.grace + PATIENCE_SECONDS if isinstance(solve, Command) else 0.0
        self._grace = GRACE_SECONDS + ending
        self._stubborn: set[asyncio.Task[Ended]] = set()
        """Functions that ignored their cancellation; kept so that they aren't collected midway."""

    async def __aenter__(self) -> InProcessCrew:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """See `Crew.run`."""
        with rollout_scope(scope):
            begun()
            work = start(self._solve, task)
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                if await self._cancel(work):
                    raise
                return Outcome(left_behind=True)
            return read(work.result(), task, self._solve)

    async def _cancel(self, work: asyncio.Task[Ended]) -> bool:
        """Cancel the function; False if it goes on all the same."""
        work.cancel()
        await asyncio.wait({work}, timeout=self._grace)
        if work.done():
            return work.cancelled() or not work.result().left_behind
        self._stubborn.add(work)
        work.add_done_callback(self._stubborn.discard)
        return False


def read(ended: Ended, task: Task, solve: Solve) -> Outcome:
    """The end of a function as what is stored: a finite number, nothing, or text."""
    failure = ended.error
    if failure is None:
        try:
            return Outcome(None if ended.value is None else to_reward(ended.value, task, solve))
        except RewardError as refused:
            failure = refused
    return Outcome(error=describe(failure))
