"""A program under a supervisor, as seen from the process that started it; see `supervisor`."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from lightning_core.runner import supervisor

END_SECONDS = 30.0
"""How long, beyond its grace, a program may take to be gone for good before that is said to have failed."""
MOST_BYTES = 64 * 1024
"""That are kept of a stream."""
PIECE = 64 * 1024
CLOSE_SECONDS = 10.0
"""For what is still in the pipe when the program has ended."""
OUT_OF_MEMORY = " (as the kernel does when memory runs out)"


class Program:
    """A running program, with all that it starts."""

    def __init__(self, process: Process, control: socket.socket, grace: float) -> None:
        self._process = process
        self._control = control
        self._grace = grace
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        *,
        grace: float,
        pass_fds: Sequence[int] = (),
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> Program:
        """Start it. A program that can't be found ends with exit code 127 and says so on its stderr."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-I",
                    "-S",
                    supervisor.__file__,
                    str(theirs.fileno()),
                    str(grace),
                    *arguments,
                ),
                pass_fds=(theirs.fileno(), *pass_fds),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C in the terminal is for the runner, which then ends us
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours, grace)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        """The exit code, or the negative number of a signal, once the program and all that it started
        have ended."""
        await self._process.wait()
        try:
            return int(self._control.recv(16))
        except (OSError, ValueError):  # the supervisor was killed, and the program with it
            return -signal.SIGKILL

    async def end(self) -> bool:
        """End it now; False if something of it can't be ended. May be called in any state, and again."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace + END_SECONDS):
                await self._process.wait()
        self._control.close()
        return not self.running


def end_of(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by signal {-code} ({name})" + (OUT_OF_MEMORY if -code == signal.SIGKILL else "")


class Tail:
    """The last of what a program writes: bounded, and read all the time, so that the program never waits."""

    def __init__(self, stream: asyncio.StreamReader | None, *, forward: TextIO | None = None) -> None:
        """`forward`: where everything is shown as well."""
        self._stream = stream
        self._forward = forward
        self._kept = b""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while self._stream is not None and (piece := await self._stream.read(PIECE)):
            self._kept = (self._kept + piece)[-MOST_BYTES:]
            if self._forward is not None:
                with suppress(OSError, ValueError):  # the terminal is gone
                    self._forward.write(piece.decode(errors="replace"))
                    self._forward.flush()

    def text(self, most: int = MOST_BYTES) -> str:
        """The last characters, without white space around; what no store can hold is replaced."""
        return self._kept.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()[-most:]

    async def close(self) -> None:
        """Read what is left of an ended program's stream."""
        await asyncio.wait({self._reading}, timeout=CLOSE_SECONDS)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
