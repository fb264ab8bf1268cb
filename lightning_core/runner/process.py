"""One worker process, from the runner's side: started, given attempts, and ended.

Here an endless loop, a crash of the interpreter or a leak harms one rollout only. The interpreter is started
(spawned), never forked: a fork would inherit the locks of threads that it does not have.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lightning_core.errors import ConfigError, WorkerError
from lightning_core.records.types import Task
from lightning_core.runner.outcome import AttemptOutcome, Solve, describe
from lightning_core.runner.packing import pack
from lightning_core.runner.pool import WorkerPool
from lightning_core.runner.program import Program, Tail, end_of
from lightning_core.runner.worker import Assignment, Report, boot, frame, read
from lightning_core.tracing.scope import Scope

GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL for a process that is to end."""
REPORT_SECONDS = 3.0
"""How long a process that is to be ended may take to report what it has noticed."""
GONE = (asyncio.IncompleteReadError, ConnectionError)


def local_pool(solve: Solve, workers: int) -> WorkerPool:
    """Starts so many processes of this machine. Raises ConfigError if the function can't be sent to them."""
    if workers < 1:
        raise ConfigError(f"workers={workers!r}: must be 1 or more, or None to run rollouts in this process")
    if os.name != "posix":
        raise ConfigError("workers need Linux or macOS; elsewhere leave `workers` out")
    return WorkerPool(partial(WorkerProcess.start, pack(solve)), workers)


class WorkerProcess:
    """A process with the function loaded, which runs one attempt at a time."""

    def __init__(self, program: Program, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._program = program
        self._reader, self._writer = reader, writer
        self._stderr = Tail(program.stderr, forward=sys.stderr)

    @classmethod
    async def start(cls, solve: bytes) -> WorkerProcess:
        """A process that is ready. Raises WorkerError if it can't be made so."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                program = await Program.start(
                    [sys.executable, "-c", boot(theirs.fileno())],
                    grace=GRACE_SECONDS,
                    pass_fds=(theirs.fileno(),),
                    stderr=asyncio.subprocess.PIPE,
                )
            except BaseException:
                ours.close()
                raise
        made = cls(program, *await asyncio.open_connection(sock=ours))
        try:
            await made._load(solve)
        except BaseException:
            await made.end()
            raise
        return made

    async def _load(self, solve: bytes) -> None:
        self._writer.write(frame(solve))
        try:
            error: str | None = await read(self._reader)
        except GONE:
            raise await self._death("a worker process could not start: it") from None
        if error is not None:
            raise WorkerError(
                f"a worker process can't load the function: {error}\nEvery module that it needs "
                "must be importable there: it has this process's sys.path, environment and working folder"
            )

    @property
    def alive(self) -> bool:
        """Whether it can be given an attempt; a process may die while it has nothing to do."""
        return self._program.running and not self._reader.at_eof()

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> AttemptOutcome:
        """One attempt. Cancelling it ends the process; so does the function, if it kills its process."""
        begun()
        self._writer.write(frame(Assignment.of(scope, task)))
        reading = asyncio.ensure_future(read(self._reader))
        try:
            await asyncio.wait({reading})
        except asyncio.CancelledError:
            await self._hear_out(reading, scope)
            if await self.end():
                raise
            return AttemptOutcome(left_behind=True)
        try:
            report: Report = reading.result()
        except GONE:
            return AttemptOutcome(
                error=describe(await self._death(f"the worker process of task {task.id!r}")), world=True
            )
        report.put_into(scope)
        assert report.outcome is not None
        return report.outcome

    async def _hear_out(self, reading: asyncio.Future[Report], scope: Scope) -> None:
        """Reads the records noticed until now, if the process is still able to report them."""
        self._writer.write(frame(None))
        await asyncio.wait({reading}, timeout=REPORT_SECONDS)
        if not reading.cancel() and reading.exception() is None:
            reading.result().put_into(scope)

    async def _death(self, who: str) -> WorkerError:
        """How the process ended by itself, with the last lines of its stderr."""
        code = await self._program.wait()
        await self.end()
        error = WorkerError(f"{who} {end_of(code)}")
        if words := self._stderr.text():
            error.add_note(f"its last lines on stderr:\n{words}")
        return error

    async def end(self) -> bool:
        """End the process and what it has started; False if that is impossible."""
        ended = await self._program.end()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        await self._stderr.close()
        return ended
