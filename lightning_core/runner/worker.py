"""The inside of a worker process: runs the attempts it is sent, one after another, on one loop.

The loop is the process's for its whole life, so that clients which the function keeps between rollouts go on
working. A thread of its own listens to the runner, as the function may keep the loop, or every other thread,
busy for ever.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Sequence

from lightning_core.plugins import load_plugins
from lightning_core.runner import wire
from lightning_core.runner.executor import Crew, Noticed
from lightning_core.runner.failure import describe
from lightning_core.runner.in_process import InProcess
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope

BOOT = "import sys; sys.path[:] = {path!r}; from {module} import main; main({fd}, {argv!r})"


def boot(fd: int) -> str:
    """The Python code that makes a new interpreter a worker which finds what this one finds."""
    return BOOT.format(path=sys.path, module=__name__, fd=fd, argv=sys.argv)


def main(fd: int, argv: Sequence[str]) -> None:
    """Serve the runner at the other end of the socket until it is gone."""
    os.set_inheritable(fd, False)  # it was handed on to us, and ends here
    sys.argv[:] = argv
    faulthandler.enable(all_threads=False)
    with socket.socket(fileno=fd) as runner:
        hello: wire.Hello = wire.receive(runner)
        try:
            crew = InProcess().crew(pickle.loads(hello.solve), 1)
        except BaseException as error:  # the app's own modules, which are imported now
            runner.sendall(wire.pack(wire.Unable(describe(error))))
            return
        with instrument(load_plugins().who):
            asyncio.run(Worker(runner, crew).serve())


class Worker:
    """Runs attempts for the runner at the other end of a socket."""

    def __init__(self, runner: socket.socket, crew: Crew) -> None:
        self._runner = runner
        self._crew = crew
        self._speaking = threading.Lock()
        self._scope: Scope | None = None
        self._work: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until the process is ended, which is the only end it has."""
        listening = threading.Thread(target=self._listen, args=(asyncio.get_running_loop(),), daemon=True)
        listening.start()
        self._say(wire.Ready())
        await asyncio.Event().wait()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                message = wire.receive(self._runner)
            except OSError:
                os._exit(0)  # the runner is gone, and nobody wants what still runs
            if isinstance(message, wire.Run):
                self._scope = message.scope()
                loop.call_soon_threadsafe(self._begin, self._scope, message)
            elif self._scope is not None:
                self._say(wire.Told(Noticed.of(self._scope)))

    def _begin(self, scope: Scope, message: wire.Run) -> None:
        self._work = asyncio.create_task(self._run(scope, message))

    async def _run(self, scope: Scope, message: wire.Run) -> None:
        try:
            outcome = await self._crew.run(scope, message.task, lambda: None)
            self._say(wire.Done(outcome, Noticed.of(scope)))
        except BaseException:  # the runner must hear of it, and hears of a process that dies
            traceback.print_exc()
            os._exit(1)

    def _say(self, message: object) -> None:
        packed = wire.pack(message)
        with self._speaking:
            self._runner.sendall(packed)
