"""A real server in a process of its own, which the tests of this folder share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightning_core.backends.weights.sources import tiny_folder

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / ".data" / "tinker" / "jax"
"""JAX keeps its compiled programs here from one run of the tests to the next."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Server:
    """The server's process; it may be killed, and started again on the same port and folder."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once it answers."""
        COMPILED.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(COMPILED),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",
        }
        script = Path(__file__).with_name("server.py")
        command = [sys.executable, str(script), str(tiny_folder()), str(self.folder), str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-4000:]
            time.sleep(0.5)

    def kill(self) -> None:
        """End it and its engine at once."""
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tiny model."""
    made = Server(tmp_path_factory.mktemp("server"), free_port())
    made.start()
    try:
        yield made
    finally:
        made.kill()


@asynccontextmanager
async def serving_by(server: Server, **options: Any) -> AsyncIterator[Any]:
    """A started backend; closed at the end."""
    from lightning_core.backends.tinker.backend import TinkerBackend

    backend = TinkerBackend("tiny", url=server.url, rank=8, reduction="mean", **options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()
