"""`lightning.Command`, a program in any language in place of a Python function, and how programs are run.

Each runs under a supervisor (`supervisor`): when its rollout ends, in whatever way, the program ends with
everything it has started. The runner treats a `Command` as any other function, async and cancellable, so it
may run in a worker too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from pydantic import JsonValue

from lightning_core.errors import ConfigError, WorkerError
from lightning_core.records.types import Span, Task
from lightning_core.runner import supervisor
from lightning_core.texts.masking import masked
from lightning_core.tracing.environment import environment
from lightning_core.tracing.scope import current_scope, report

log = logging.getLogger(__name__)

END_SECONDS = 30.0
"""How long, beyond its grace, a program may take to be gone for good before that is said to have failed."""
MOST_BYTES = 64 * 1024
"""Bytes that are kept of a stream."""
PIECE = 64 * 1024
CLOSE_SECONDS = 10.0
"""For what is still in the pipe when the program has ended."""
OUT_OF_MEMORY = " (as the kernel does when memory runs out)"
KEPT = 8_000
"""Characters of each of its streams that are stored."""
COMMAND_GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL, if a program is to end."""
LONGEST_VARIABLE = 100_000
"""Bytes of a task in an environment variable: Linux takes 128 KiB."""


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


@dataclass(frozen=True, slots=True)
class Command:
    """A program that solves one task and says what that was worth."""

    arguments: Sequence[str]
    """The program and its arguments; no shell is asked."""
    agent: str | None = None
    """Whose calls they are that it makes with OPENAI_BASE_URL; see `lightning.environment`."""
    folder: str | Path | None = None
    """Its working folder; None: that of the runner."""
    pass_task: bool = True
    """Whether it gets the task, on its standard input and as LIGHTNING_TASK. False for a program whose
    arguments say what to do, such as a coding harness: it adds its input to the prompt, and the task may hold
    the answer."""

    reward_hint = (
        'print a number, or {"reward": number}, as the last line, or post one to LIGHTNING_REWARD_URL'
    )

    def __post_init__(self) -> None:
        if isinstance(self.arguments, str) or not self.arguments:
            raise ConfigError(
                f"Command({self.arguments!r}): give a list, the program first, such as ['node', 'agent.js']"
            )

    def check(self) -> None:
        """Raise ConfigError if this machine can't run it."""
        if os.name != "posix":
            raise ConfigError("Command needs Linux or macOS: elsewhere, start the program in a function")
        path, name = os.environ.get("PATH"), self.arguments[0]
        if os.sep in name and self.folder is not None:
            name = os.path.join(self.folder, name)
        if shutil.which(name, path=path) is None:
            shown = list(masked(self.arguments))
            raise ConfigError(f"Command({shown!r}): there is no program {self.arguments[0]!r}")

    async def __call__(self, task: Task) -> Any:
        """Run it on a task; the reward it printed, or None. Nothing of it is left when this ends."""
        text = task.model_dump_json()
        program = await Program.start(
            list(self.arguments),
            grace=COMMAND_GRACE_SECONDS,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(text),
            cwd=self.folder,
        )
        began, code = time.time(), None
        streams = Tail(program.stdout), Tail(program.stderr)
        feeding = asyncio.create_task(_feed(program, text if self.pass_task else ""))
        try:
            code = await program.wait()
        finally:
            feeding.cancel()
            if not await program.end():
                log.warning("program %r of task %r can't be ended", self.arguments[0], task.id)
            await asyncio.gather(*(stream.close() for stream in streams))
            self._report(code, began, *streams)
        if code != 0:
            raise self._failure(task, code, *streams)
        return _reward(streams[0].text())

    def _environment(self, task: str) -> dict[str, str]:
        given = {**os.environ, **environment(self.agent)}
        if self.folder is not None:
            given["PWD"] = os.path.abspath(self.folder)  # some programs believe it more than the system
        if self.pass_task and len(task.encode()) <= LONGEST_VARIABLE:
            given["LIGHTNING_TASK"] = task
        else:
            given.pop("LIGHTNING_TASK", None)
        return given

    def _failure(self, task: Task, code: int, out: Tail, err: Tail) -> WorkerError:
        error = WorkerError(f"program {self.arguments[0]!r} {end_of(code)} on task {task.id!r}")
        for name, stream in (("stderr", err), ("stdout", out)):
            if words := stream.text():
                error.add_note(f"its {name} ends:\n{words[-KEPT:]}")
                break
        return error

    def _report(self, code: int | None, began: float, out: Tail, err: Tail) -> None:
        """Note its run as a span, with the end of what it wrote."""
        scope = current_scope()
        if scope is None:
            return
        attributes: dict[str, JsonValue] = {
            "process.command_args": list(masked(self.arguments)),
            "process.exit.code": code,
            "process.stdout": out.text(KEPT),
            "process.stderr": err.text(KEPT),
        }
        report(
            Span(
                id=uuid4().hex[:16],
                trace_id=uuid4().hex,
                rollout_id=scope.rollout_id,
                attempt=scope.attempt,
                name=Path(self.arguments[0]).name,
                attributes={name: value for name, value in attributes.items() if value not in (None, "")},
                error=None if code == 0 else "ended by its runner" if code is None else end_of(code),
                started_at=began,
                ended_at=time.time(),
            )
        )


async def _feed(program: Program, text: str) -> None:
    """The task on its standard input, which it need not read."""
    assert program.stdin is not None
    with suppress(OSError):
        program.stdin.write(text.encode())
        await program.stdin.drain()
        program.stdin.close()


def _reward(printed: str) -> Any:
    """Reads the last line: a number, or the field `reward`; None if it is about something else."""
    try:
        said = json.loads(printed.rpartition("\n")[2])
    except ValueError:
        return None
    if isinstance(said, dict):
        return said.get("reward")
    return said if isinstance(said, int | float) else None
