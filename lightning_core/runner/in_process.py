"""Attempts in this very process: async functions on its loop, others in threads.

The cheapest way, and all rollouts share the app's clients and caches. Async functions are cancelled. A
function in a thread can't be stopped: it is left behind, its late calls are ignored, and its slot goes on.
An endless loop inside an async function stops the whole loop: such apps need worker processes.

Whatever the function raises is an outcome, also SystemExit and a CancelledError of the app's making: one
failing rollout must stop neither its neighbours nor the runner.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread

from lightning_core.errors import RewardError
from lightning_core.records.types import Task
from lightning_core.runner.outcome import AttemptOutcome, Solve, failed, to_reward
from lightning_core.runner.program import COMMAND_GRACE_SECONDS, END_SECONDS, Command
from lightning_core.tracing.scope import Scope, leave_behind, rollout_scope

GRACE_SECONDS = 2.0
"""How long a cancelled function may take to end before its slot is taken from it."""


class InProcess:
    """Runs a function here, any number of times at once."""

    def __init__(self, solve: Solve) -> None:
        """Raises ConfigError for a `Command` whose program is not on this machine."""
        ending = 0.0
        if isinstance(solve, Command):
            solve.check()
            ending = COMMAND_GRACE_SECONDS + END_SECONDS
        self._solve = solve
        self._grace = GRACE_SECONDS + ending
        self._stubborn: set[asyncio.Task[_Ended]] = set()
        """Functions that ignored their cancellation; kept so that they aren't collected midway."""

    async def __aenter__(self) -> InProcess:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> AttemptOutcome:
        """See `WorkerPool.run`."""
        with rollout_scope(scope):
            begun()
            work = asyncio.create_task((_on_loop if _is_async(self._solve) else _off_loop)(self._solve, task))
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                if await self._cancel(work):
                    raise
                leave_behind()
                return AttemptOutcome(left_behind=True)
            return self._read(work.result(), task)

    async def _cancel(self, work: asyncio.Task[_Ended]) -> bool:
        """Cancel the function; False if it goes on all the same."""
        work.cancel()
        await asyncio.wait({work}, timeout=self._grace)
        if work.done():
            return work.cancelled() or not work.result().left_behind
        self._stubborn.add(work)
        work.add_done_callback(self._stubborn.discard)
        return False

    def _read(self, ended: _Ended, task: Task) -> AttemptOutcome:
        """Returns the outcome to store: a finite number, nothing, or text."""
        failure = ended.error
        if failure is None:
            try:
                return AttemptOutcome(
                    None if ended.value is None else to_reward(ended.value, task, self._solve)
                )
            except RewardError as refused:
                failure = refused
        return failed(failure)


@dataclass(frozen=True, slots=True)
class _Ended:
    """The function's return value, or the error it raised."""

    value: object = None
    error: BaseException | None = None
    left_behind: bool = False
    """Whether it still runs in its thread."""


def _is_async(solve: Solve) -> bool:
    """Whether calling the function gives a coroutine, so that it can run on the loop."""
    return inspect.iscoroutinefunction(solve) or inspect.iscoroutinefunction(type(solve).__call__)


async def _on_loop(solve: Solve, task: Task) -> _Ended:
    """Cancelling this cancels the function."""
    try:
        return _Ended(value=await solve(task))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _Ended(error=error)


async def _off_loop(solve: Solve, task: Task) -> _Ended:
    """Cancelling this leaves the function behind in its thread."""
    try:
        outcome = await _in_thread(solve, task)
    except asyncio.CancelledError as error:
        return _Ended(error=error, left_behind=True)
    except RuntimeError as error:  # no more threads to be had
        return _Ended(error=error)
    if inspect.isawaitable(outcome.value):  # a lambda or a wrapper around an async function
        return await _on_loop(lambda _: outcome.value, task)
    return outcome


async def _in_thread(solve: Solve, task: Task) -> _Ended:
    """Run in a new daemon thread: a pool would be used up by the threads that are left behind, and
    would keep the program from ending. One thread costs less than 0.1 ms."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[_Ended] = loop.create_future()
    context = copy_context()

    def tell(outcome: _Ended) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def body() -> None:
        try:
            outcome = _Ended(value=context.run(solve, task))
        except BaseException as error:
            outcome = _Ended(error=error)
        with suppress(RuntimeError):  # left behind, and its loop has closed meanwhile
            loop.call_soon_threadsafe(tell, outcome)

    Thread(target=body, name=f"rollout of task {task.id}", daemon=True).start()
    return await ended
