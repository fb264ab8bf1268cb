"""Where the measured stores live: a file, or a server on this machine that is reached over loopback TCP.

A site is empty when it is handed out, and gone afterwards. Servers keep what they have accepted when the
machine crashes: PostgreSQL syncs every commit to disk, as it is shipped, and Redis every write. A SQLite
store does not: what it has accepted survives any process, not a power loss.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from benchmarks.processes import cpu_seconds
from lightning_core.plugins import load_plugins
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import SqliteConnection, SqliteStore
from lightning_core.stores.workers import Operation
from lightning_core.trainer.parts import open_store

Count = Callable[[Store], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Site:
    """An empty store that one may connect to as often as one likes."""

    name: str
    url: str
    server: int | None = None
    """The process id of its server; None where there is none."""
    held: Callable[[], int] | None = None
    """Returns the bytes that its calls take, once its connections are closed; None for memory alone."""
    count: Count | None = None
    """How many statements the database has been sent so far, this question left out."""

    def open(self) -> Store:
        """Another connection to it; enter it to open it."""
        return open_store(self.url, load_plugins())

    def server_cpu(self) -> float:
        """CPU seconds that the server has used so far; 0.0 where there is none."""
        return 0.0 if self.server is None else cpu_seconds(self.server)

    async def statements(self, store: Store) -> int | None:
        """How many the database has been sent so far; None where there is no database."""
        return None if self.count is None else await self.count(store)

    @property
    def shared(self) -> bool:
        """Whether several processes may use it."""
        return self.name != "memory"


@contextmanager
def memory(*, counted: bool = False) -> Iterator[Site]:
    yield Site("memory", "memory://")


@contextmanager
def sqlite(*, counted: bool = False) -> Iterator[Site]:
    said: list[str] = []

    def trace(connection: SqliteConnection) -> int:
        connection.raw.set_trace_callback(said.append)
        return len(said)

    async def count(store: Store) -> int:
        assert isinstance(store, SqliteStore)
        return int(await store._reader.run(Operation(trace)))

    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as folder:
        path = Path(folder) / "runs.db"
        yield Site(
            "sqlite",
            f"sqlite:///{path}",
            held=lambda: path.stat().st_size,
            count=count if counted else None,
        )


@contextmanager
def postgres(*, counted: bool = False) -> Iterator[Site]:
    """With `counted` every statement is written to the server's log."""
    import psycopg

    from tests.stores.postgres_server import PostgresServer

    settings = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"}
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        server = PostgresServer(folder, **settings, **({"log_statement": "all"} if counted else {}))

        async def count(store: Store) -> int:
            return (folder / "log").read_text().count(" LOG: ")

        def held() -> int:
            with psycopg.connect(server.url()) as connection:
                query = "SELECT pg_total_relation_size('lightning.calls')"
                return int(connection.execute(query).fetchall()[0][0])

        server.start()
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        try:
            yield Site("postgres", server.url(), pid, held, count if counted else None)
        finally:
            server.stop()


@contextmanager
def redis(*, counted: bool = False) -> Iterator[Site]:
    import redis as driver

    from tests.stores.redis_server import serving

    with serving() as server, driver.Redis(port=server.port) as client:
        pid = int(_info(client, "server")["process_id"])
        asked = 0

        async def count(store: Store) -> int:
            nonlocal asked
            asked += 1
            return int(_info(client, "stats")["total_commands_processed"]) - asked

        def held() -> int:
            keys = client.scan_iter("lightning:calls:*")
            return sum(int(client.memory_usage(key, samples=0) or 0) for key in keys)

        yield Site("redis", server.url, pid, held, count if counted else None)


def _info(client: Any, section: str) -> dict[str, Any]:
    found: dict[str, Any] = client.info(section)
    return found


@contextmanager
def http() -> Iterator[Site]:
    """A SQLite store behind `agentlightning api`, in a process of its own."""
    from lightning_core.api.access import SECRET_NAME, RunGrant, issue

    secret = token_hex(32)
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as folder:
        store = f"sqlite:///{Path(folder) / 'runs.db'}"
        command = [
            sys.executable,
            "-m",
            "lightning_core.cli",
            "api",
            "--store",
            store,
            "--listen",
            "127.0.0.1:0",
        ]
        given = {**os.environ, SECRET_NAME: secret}
        with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            url = re.search(r"http://[^/\s]+", server.stderr.readline())
            try:
                assert url is not None, server.stderr.read()
                token = issue(secret.encode(), RunGrant("admin", None, time.time() + 86_400))
                yield Site("http", url[0].replace("://", f"://:{token}@"), server.pid)
            finally:
                server.terminate()


SITES: dict[str, Callable[..., AbstractContextManager[Site]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "redis": redis,
}
