"""The processes of a run and their lives: started from the command line's own code, killed, started again.

They are forked from a server that has imported everything already: what is tested is how they die and come
back, not how long Python takes to import.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

PRELOADED = (
    "openai",
    "psycopg",
    "lightning_core.backends.local",
    "lightning_core.trainer.trainer",
    "lightning_core.gateway.app",
    "lightning_core.stores.postgres",
    "lightning_core.cli",
)


def nursery() -> ForkServerContext:
    """Where the processes come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def command(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """`agentlightning` with these arguments, as a process of its own that writes to `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    sys.argv = ["agentlightning", *arguments]
    from lightning_core.cli import main

    main()


@dataclass(slots=True)
class Role:
    """One process that plays a role, and how it is started anew."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    context: ForkServerContext
    process: ForkServerProcess | None = None
    exits: list[int] = field(default_factory=list)
    """How it ended when nobody had killed it."""

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def start(self, *further: str) -> None:
        """Begin, with further arguments."""
        arguments = (*self.arguments, *further)
        self.process = self.context.Process(
            target=command, args=(arguments, dict(self.environment), self.log), name=self.name
        )
        self.process.start()

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        assert self.process is not None
        self.process.kill()
        self.process.join()
        self.process = None

    def ended(self) -> int | None:
        """Its exit code, if it ended by itself."""
        if self.process is None or self.process.is_alive():
            return None
        self.process.join()
        code = self.process.exitcode
        self.process = None
        assert code is not None
        self.exits.append(code)
        return code

    def tail(self, lines: int = 40) -> str:
        """The last it said."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
