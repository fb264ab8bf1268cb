"""A program under a warden, as seen from the process that asked for it; see `warden`."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lightning_core.runner import warden

PATIENCE_SECONDS = 30.0
"""How long, beyond its grace, a program may take to be gone for good before that is said to have failed."""
OUT_OF_MEMORY = " (as the kernel does when memory runs out)"


class Warded:
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
    ) -> Warded:
        """Start it. A program that can't be found ends with exit code 127 and says so on its stderr."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", warden.__file__, str(theirs.fileno()), str(grace), *arguments),
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
        except (OSError, ValueError):  # the warden was killed, and the program with it
            return -signal.SIGKILL

    async def end(self) -> bool:
        """End it now; False if something of it can't be ended. May be called in any state, and again."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace + PATIENCE_SECONDS):
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
