"""The inside of a worker process, and the messages by which a runner has it run attempts.

The process runs one attempt after another on one loop, which lasts as long as the process, so that clients
which the function keeps between rollouts go on working. A thread of its own listens to the runner, as the
function may keep the loop, or every other thread, busy for ever.

Both sides send pickles over a socket pair. Pickle is safe here: the socket has no name, and the worker keeps
its end from the programs that the app starts. The runner sends the function, as `packing.pack` makes it, then
an `Assignment` for each attempt, or None to ask how one stands. The worker answers the first with None, or
with the error by which the function can't be loaded, and each other message with a `Report`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from lightning_core.plugins import load_plugins
from lightning_core.prompts import Pinned
from lightning_core.records.types import Call, Event, Reward, Task
from lightning_core.runner.in_process import InProcess
from lightning_core.runner.outcome import AttemptOutcome, describe
from lightning_core.runner.tagging import tagging
from lightning_core.tracing.scope import Scope

BOOT = "import sys; sys.path[:] = {path!r}; from {module} import main; main({fd}, {argv!r})"
_LENGTH = struct.Struct("!Q")
GONE = (OSError, EOFError, pickle.UnpicklingError)


# messages -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt to run: the task, and of its scope what another process can have."""

    rollout_id: str
    attempt: int
    gateway_url: str
    token: str
    agents: tuple[str, ...] | None
    prompts: Mapping[str, Pinned]
    task: Task

    @classmethod
    def of(cls, scope: Scope, task: Task) -> Assignment:
        place = scope.rollout_id, scope.attempt, scope.gateway_url, scope.token
        return cls(*place, scope.agents, dict(scope.prompts), task)

    def scope(self) -> Scope:
        """The attempt's scope in the worker."""
        place = self.rollout_id, self.attempt, self.gateway_url, self.token
        return Scope(*place, self.agents, self.prompts)


@dataclass(frozen=True, slots=True)
class Report:
    """The records noticed of an attempt until now, and how it ended."""

    outcome: AttemptOutcome | None
    """None while it runs, and if it was ended from outside."""
    calls: tuple[Call, ...] = ()
    events: tuple[Event, ...] = ()
    rewards: tuple[Reward, ...] = ()

    @classmethod
    def of(cls, scope: Scope, outcome: AttemptOutcome | None = None) -> Report:
        """May be called from any thread."""
        calls, events = scope.noticed()
        return cls(outcome, tuple(calls), tuple(events), tuple(scope.rewards))

    def put_into(self, scope: Scope) -> None:
        """Hand what was noticed to the runner's own scope."""
        scope.seen.extend([*self.calls, *self.events])
        scope.rewards.extend(self.rewards)


def frame(message: object) -> bytes:
    """A message as it goes over the socket."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


async def read(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises IncompleteReadError or ConnectionError if the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def receive(stream: BinaryIO) -> Any:
    """The same, for a thread. Raises one of `GONE` if the other side is gone."""
    stream.read(_LENGTH.size)  # a pickle says itself where it ends
    return pickle.load(stream)


# the process --------------------------------------------------------------------------------
def boot(fd: int) -> str:
    """The Python code that makes a new interpreter a worker which finds what this one finds."""
    return BOOT.format(path=sys.path, module=__name__, fd=fd, argv=sys.argv)


def main(fd: int, argv: Sequence[str]) -> None:
    """Serve the runner at the other end of the socket until it is gone."""
    os.set_inheritable(fd, False)  # it was handed on to us, and ends here
    sys.argv[:] = argv
    faulthandler.enable(all_threads=False)
    with socket.socket(fileno=fd) as runner, runner.makefile("rb") as incoming:
        solve: bytes = receive(incoming)
        try:
            runs_in = InProcess(pickle.loads(solve))
        except BaseException as error:  # the app's own modules, which are imported now
            runner.sendall(frame(describe(error)))
            return
        with tagging(load_plugins()):
            asyncio.run(Worker(runner, incoming, runs_in).serve())


class Worker:
    """Runs attempts for the runner at the other end of a socket."""

    def __init__(self, runner: socket.socket, incoming: BinaryIO, runs_in: InProcess) -> None:
        self._runner = runner
        self._incoming = incoming
        self._runs_in = runs_in
        self._sending = threading.Lock()
        self._scope: Scope | None = None
        self._work: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until the process is ended, which is the only end it has."""
        listening = threading.Thread(target=self._listen, args=(asyncio.get_running_loop(),), daemon=True)
        listening.start()
        self._send(None)
        await asyncio.Event().wait()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                assignment: Assignment | None = receive(self._incoming)
            except GONE:
                os._exit(0)  # the runner is gone, and with it the use of what still runs
            if assignment is not None:
                self._scope = assignment.scope()
                loop.call_soon_threadsafe(self._begin, self._scope, assignment.task)
            elif self._scope is not None:
                self._send(Report.of(self._scope))

    def _begin(self, scope: Scope, task: Task) -> None:
        self._work = asyncio.create_task(self._run(scope, task))

    async def _run(self, scope: Scope, task: Task) -> None:
        try:
            outcome = await self._runs_in.run(scope, task, lambda: None)
            self._send(Report.of(scope, outcome))
        except BaseException:  # the runner must hear of it, and hears of a process that dies
            traceback.print_exc()
            os._exit(1)

    def _send(self, message: Report | None) -> None:
        packed = frame(message)
        with self._sending:
            self._runner.sendall(packed)
