"""`lightning.Command`: a program in any language, run once for each task, in place of a Python function.

The runner treats it as any other function, async and cancellable, so it may run in a worker too. When its
rollout ends, in whatever way, the program ends with everything it has started: see `supervisor`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import JsonValue

from lightning_core.errors import ConfigError, WorkerError
from lightning_core.masking import masked
from lightning_core.runner.program import Program, Tail, end_of
from lightning_core.tracing.environment import environment
from lightning_core.tracing.scope import current_scope, report
from lightning_core.types import Span, Task

log = logging.getLogger(__name__)

KEPT = 8_000
"""Characters of each of its streams that are stored."""
COMMAND_GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL, if a program is to end."""
LONGEST_VARIABLE = 100_000
"""Bytes of a task in an environment variable: Linux takes 128 KiB."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that solves one task and says what that was worth."""

    arguments: Sequence[str]
    """The program and its arguments; no shell is asked."""
    agent: str | None = None
    """Whose calls they are that it makes with OPENAI_BASE_URL; see `lightning.environment`."""
    folder: str | Path | None = None
    """Its working folder; None: that of the runner."""

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
        feeding = asyncio.create_task(_feed(program, text))
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
        if len(task.encode()) <= LONGEST_VARIABLE:
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
    """What the last line says: a number, or the field `reward`; None if it is about something else."""
    try:
        said = json.loads(printed.rpartition("\n")[2])
    except ValueError:
        return None
    if isinstance(said, dict):
        return said.get("reward")
    return said if isinstance(said, int | float) else None
