"""`executor="processes"`: a warm pool of worker processes, one attempt in each at a time.

Here an endless loop, a crash of the interpreter or a leak is one rollout's matter. A process is started once
and runs attempt after attempt; one that was ended, or that died, is replaced at once. Processes are started
afresh (spawned), never forked: a fork would inherit the locks of threads that it does not have.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.errors import ConfigError, ExecutorError, LightningError
from lightning_core.runner.executor import Outcome, Solve
from lightning_core.runner.failure import describe
from lightning_core.runner.member import Member
from lightning_core.runner.packing import pack
from lightning_core.tracing.scope import Scope
from lightning_core.types import Task


@dataclass(frozen=True, slots=True)
class Processes:
    """Run in worker processes of this machine."""

    workers: int | None = None
    """Processes, and so rollouts at once; None: as many as the runner's `concurrency`. Each is an interpreter
    with the app loaded, and is started when it is first needed."""
    grace: float = 1.0
    """Seconds between SIGTERM and SIGKILL for what is to end."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"Processes(workers={self.workers!r}): must be 1 or more, or None")
        if not self.grace >= 0:
            raise ConfigError(f"Processes(grace={self.grace!r}): must be 0 seconds or more")

    def crew(self, solve: Solve, concurrency: int) -> ProcessCrew:
        """Raises ConfigError if the function can't be sent to another process."""
        if os.name != "posix":
            raise ConfigError('executor="processes" needs Linux or macOS; use executor="asyncio"')
        return ProcessCrew(pack(solve, "processes"), self.workers or concurrency, self.grace)


class ProcessCrew:
    """The pool."""

    def __init__(self, solve: bytes, slots: int, grace: float) -> None:
        self.slots: int | None = slots
        self._solve = solve
        self._grace = grace

    async def __aenter__(self) -> ProcessCrew:
        self._idle: asyncio.LifoQueue[Member | LightningError] = asyncio.LifoQueue()
        """Processes without an attempt, the one that was last busy on top; or why there is none."""
        self._places = self.slots or 0
        """Processes that may still be started."""
        self._starting: set[asyncio.Task[None]] = set()
        self._members: set[Member] = set()
        self._places -= 1
        self._idle.put_nowait(await self._start())  # so that a function which can't be loaded is refused now
        return self

    async def __aexit__(self, *exc: object) -> None:
        for start in self._starting:
            start.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(member.end() for member in self._members))

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """See `Crew.run`."""
        try:
            member = await self._take()
        except LightningError as error:
            return Outcome(error=describe(error))
        try:
            return await member.run(scope, task, begun)
        finally:
            self._give(member)

    async def _take(self) -> Member:
        """A process that lives, once there is one."""
        while True:
            if self._idle.empty() and self._places:
                self._places -= 1
                self._add()
            found = await self._idle.get()
            if isinstance(found, LightningError):
                self._places += 1
                raise found
            if found.alive:
                return found
            self._replace(found)

    def _give(self, member: Member) -> None:
        if member.alive:
            self._idle.put_nowait(member)
        else:
            self._replace(member)

    def _replace(self, member: Member) -> None:
        """Fill the place of a process that is no more."""
        self._members.discard(member)
        self._add(member)

    def _add(self, instead_of: Member | None = None) -> None:
        task = asyncio.create_task(self._bring(instead_of))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _bring(self, instead_of: Member | None) -> None:
        if instead_of is not None:
            await instead_of.end()
        try:
            self._idle.put_nowait(await self._start())
        except LightningError as error:
            self._idle.put_nowait(error)
        except OSError as error:  # no process, memory or file descriptors to be had
            self._idle.put_nowait(ExecutorError(f"no worker process could be started: {error}"))

    async def _start(self) -> Member:
        member = await Member.start(self._solve, self._grace)
        self._members.add(member)
        return member
