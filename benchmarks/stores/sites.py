"""Where the measured stores live: a file, or a server on this machine that is reached over loopback TCP.

A site is empty when it is handed out, and gone afterwards. Servers run with the settings that they are
shipped with, so PostgreSQL syncs every commit to disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stores.processes import cpu_seconds
from lightning_core.plugins import load_plugins
from lightning_core.stores.base import Store
from lightning_core.trainer.session import open_store


@dataclass(frozen=True, slots=True)
class Site:
    """An empty store that one may connect to as often as one likes."""

    name: str
    url: str
    server: int | None = None
    """The process id of its server; None where there is none."""
    count: Callable[[Store], Awaitable[int]] | None = None
    """Counts the statements that it has seen, this one left out."""

    def open(self) -> Store:
        """Another connection to it; enter it to open it."""
        return open_store(self.url, load_plugins())

    def server_cpu(self) -> float:
        """CPU seconds that the server has used so far; 0.0 where there is none."""
        return 0.0 if self.server is None else cpu_seconds(self.server)

    async def statements(self, store: Store) -> int | None:
        """How many this connection has (or all have) sent so far; None where there is no database."""
        return await self.count(store) if self.count is not None else None

    @property
    def shared(self) -> bool:
        """Whether several processes may use it."""
        return self.name != "memory"


@contextmanager
def memory() -> Iterator[Site]:
    yield Site("memory", "memory://")


@contextmanager
def sqlite() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as folder:
        yield Site("sqlite", f"sqlite:///{Path(folder) / 'runs.db'}")


SITES: dict[str, Callable[[], Iterator[Site]]] = {"memory": memory, "sqlite": sqlite}
