"""One worker process, from the runner's side: started, sent attempts, and ended."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from lightning_core.errors import ExecutorError
from lightning_core.runner import wire
from lightning_core.runner.executor import Outcome
from lightning_core.runner.failure import describe
from lightning_core.runner.tail import Tail
from lightning_core.runner.warded import Warded, end_of
from lightning_core.runner.worker import boot
from lightning_core.tracing.scope import Scope
from lightning_core.types import Task

TELL_SECONDS = 3.0
"""How long a process that is to be ended may take to say what it has noticed."""
GONE = (asyncio.IncompleteReadError, ConnectionError)


class Member:
    """A process with the function loaded, which runs one attempt at a time."""

    def __init__(self, program: Warded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._program = program
        self._reader, self._writer = reader, writer
        self._stderr = Tail(program.stderr, forward=sys.stderr)

    @classmethod
    async def start(cls, solve: bytes, grace: float) -> Member:
        """A process that is ready. Raises ExecutorError if it can't be made so."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                program = await Warded.start(
                    [sys.executable, "-c", boot(theirs.fileno())],
                    grace=grace,
                    pass_fds=(theirs.fileno(),),
                    stderr=asyncio.subprocess.PIPE,
                )
            except BaseException:
                ours.close()
                raise
        member = cls(program, *await asyncio.open_connection(sock=ours))
        try:
            await member._greet(solve)
        except BaseException:
            await member.end()
            raise
        return member

    async def _greet(self, solve: bytes) -> None:
        self._writer.write(wire.pack(wire.Hello(solve)))
        try:
            answer = await wire.read(self._reader)
        except GONE:
            raise await self._death("a worker process could not start: it") from None
        if isinstance(answer, wire.Unable):
            raise ExecutorError(
                f"a worker process can't load the function: {answer.error}\nEvery module that it needs "
                "must be importable there: it has this process's sys.path, environment and working folder"
            )

    @property
    def alive(self) -> bool:
        """Whether it can be sent an attempt; a process may die while it has nothing to do."""
        return self._program.running and not self._reader.at_eof()

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """One attempt. Cancelling it ends the process; so does the function, if it kills its process."""
        begun()
        self._writer.write(wire.pack(wire.Run.of(scope, task)))
        reading = asyncio.ensure_future(wire.read(self._reader))
        try:
            await asyncio.wait({reading})
        except asyncio.CancelledError:
            await self._hear_out(reading, scope)
            if await self.end():
                raise
            return Outcome(left_behind=True)
        try:
            done: wire.Done = reading.result()
        except GONE:
            return Outcome(error=describe(await self._death(f"the worker process of task {task.id!r}")))
        done.noticed.put_into(scope)
        return done.outcome

    async def _hear_out(self, reading: asyncio.Future[wire.Done | wire.Told], scope: Scope) -> None:
        """What was noticed until now, if the process is still able to say it."""
        self._writer.write(wire.pack(wire.Tell()))
        await asyncio.wait({reading}, timeout=TELL_SECONDS)
        if not reading.cancel() and reading.exception() is None:
            reading.result().noticed.put_into(scope)

    async def _death(self, who: str) -> ExecutorError:
        """How the process ended by itself, with its last words."""
        code = await self._program.wait()
        await self.end()
        error = ExecutorError(f"{who} {end_of(code)}")
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
