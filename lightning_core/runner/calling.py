"""One run of the user's function, async on this loop or sync in a thread of its own.

Whatever it raises is an outcome, also SystemExit and a CancelledError of the app's making: one
failing rollout must stop neither its neighbours nor the runner.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread

from lightning_core.runner.executor import Solve
from lightning_core.types import Task


@dataclass(frozen=True, slots=True)
class Ended:
    """How the function ended: what it returned, or what it raised."""

    value: object = None
    error: BaseException | None = None
    left_behind: bool = False
    """Whether the function still runs in its thread, where nobody listens any more."""


def is_async(solve: Solve) -> bool:
    """Whether calling the function gives a coroutine, so that it can run on the loop."""
    return inspect.iscoroutinefunction(solve) or inspect.iscoroutinefunction(type(solve).__call__)


def start(solve: Solve, task: Task) -> asyncio.Task[Ended]:
    """Begin to run the function, in a copy of the current context. Cancelling the task stops an
    async function; a thread can't be stopped and is left behind, its outcome unheard."""
    return asyncio.create_task(_on_loop(solve, task) if is_async(solve) else _off_loop(solve, task))


async def _on_loop(solve: Solve, task: Task) -> Ended:
    try:
        return Ended(value=await solve(task))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Ended(error=error)


async def _off_loop(solve: Solve, task: Task) -> Ended:
    try:
        outcome = await _in_thread(solve, task)
    except asyncio.CancelledError as error:
        return Ended(error=error, left_behind=True)
    except RuntimeError as error:  # no more threads to be had
        return Ended(error=error)
    if inspect.isawaitable(outcome.value):  # a lambda or a wrapper around an async function
        return await _on_loop(lambda _: outcome.value, task)
    return outcome


async def _in_thread(solve: Solve, task: Task) -> Ended:
    """Run in a new daemon thread: a pool would be used up by the threads that are left behind, and
    would keep the program from ending. One thread costs less than 0.1 ms."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Ended] = loop.create_future()
    context = copy_context()

    def tell(outcome: Ended) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def body() -> None:
        try:
            outcome = Ended(value=context.run(solve, task))
        except BaseException as error:
            outcome = Ended(error=error)
        with suppress(RuntimeError):  # left behind, and its loop has closed meanwhile
            loop.call_soon_threadsafe(tell, outcome)

    Thread(target=body, name=f"rollout of task {task.id}", daemon=True).start()
    return await ended
