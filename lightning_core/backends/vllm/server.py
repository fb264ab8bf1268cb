"""One of vLLM's servers as a process of its own: started, waited for, ended with all that it starts.

It runs under the warden that also ends users' programs (`runner.warden`): whatever becomes of this process,
no engine stays behind with a GPU's memory.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from lightning_core.backends.chat.folder import find_source
from lightning_core.backends.vllm.command import (
    HOST,
    ServerOptions,
    arguments,
    check_options,
    environment,
    free_port,
)
from lightning_core.backends.vllm.wire import Wire
from lightning_core.errors import EngineError
from lightning_core.runner import warden
from lightning_core.runner.warded import end_of

GRACE_SECONDS = 5.0
"""Between the request to end and the end by force."""
LOOK_SECONDS = 0.2
LAST_LINES = 20


class VllmServer:
    """Serves one model folder on loopback. `start` may be called again after an end of any kind."""

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        port: int | None = None,
        options: ServerOptions | None = None,
        start_seconds: float = 600.0,
    ) -> None:
        """`name` is what the model is served as, its folder's by default; `port` a free one by default.

        Raises ModelError for a folder that is none, ConfigError for what can't be started here.
        """
        self.source, called = find_source(model)
        self.name = name or called
        self.options = options or ServerOptions()
        check_options(self.options, port)
        self.port = port or free_port()
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log: Path | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The warden's process, beneath which all others are."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it and wait until it answers. Raises EngineError with the last lines that it wrote."""
        if not self.running:
            await asyncio.to_thread(self._launch)
        wire = Wire()
        try:
            async with asyncio.timeout(self._start_seconds):
                while await wire.ailment(self.url) is not None:
                    self._check_alive()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            said = self.tail()
            await self.close()
            raise EngineError(
                f"vLLM did not answer within {self._start_seconds:g} s; it wrote last:\n{said}"
            ) from error
        except BaseException:
            await self.close()
            raise
        finally:
            await wire.close()

    async def close(self) -> None:
        """End it; a second time does nothing. From any event loop."""
        await asyncio.to_thread(self._end)

    def tail(self) -> str:
        """The last lines that it wrote."""
        if self._log is None:
            return ""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if "leaked" not in line][-LAST_LINES:])

    def _launch(self) -> None:
        self._end()  # what is left of a process that has ended by itself
        ours, theirs = socket.socketpair()
        command = arguments(self.source, self.name, self.port, secrets.randbits(31), self.options)
        number, path = tempfile.mkstemp(prefix="lightning-vllm-", suffix=".log")
        self._log = Path(path)
        with theirs, open(number, "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    warden.__file__,
                    str(theirs.fileno()),
                    str(GRACE_SECONDS),
                    *command,
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.source, self.options),
                start_new_session=True,
            )
        self._control = ours

    def _check_alive(self) -> None:
        if self.running:
            return
        code = 0
        with suppress(OSError, ValueError):
            code = int(self._control.recv(16)) if self._control is not None else 0
        raise EngineError(f"vLLM's server {end_of(code)} at its start; it wrote last:\n{self.tail()}")

    def _end(self) -> None:
        process, control = self._process, self._control
        if process is None or control is None:
            return
        with suppress(OSError):
            control.shutdown(socket.SHUT_WR)
        process.wait()
        control.close()
        self._process = self._control = None
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None
