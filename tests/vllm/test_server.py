"""A server's process: what keeps it from starting is said, and nothing is left of it afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from lightning_core.backends.vllm.server import ServerOptions, VllmServer
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.errors import EngineError, ModelError
from lightning_core.runner.supervisor import descendants

STARTER = """
import asyncio, sys
from lightning_core.backends.vllm.server import VllmServer

async def main():
    server = VllmServer("tiny")
    starting = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    print(server.pid, flush=True)
    await starting

asyncio.run(main())
"""


async def test_a_server_that_ends_at_its_start_is_quoted() -> None:
    server = VllmServer(tiny_folder(), options=ServerOptions(extra=("--no-such-option",)))
    with pytest.raises(EngineError, match=r"(?s)ended with exit code 2 at its start.*--no-such-option"):
        await server.start()
    assert not server.running
    await server.close()


def test_a_folder_that_is_none_is_refused_before(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        VllmServer(tmp_path / "nothing")


def test_a_server_ends_with_whoever_started_it() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout
    warden = int(starter.stdout.readline())
    while not descendants(warden):
        time.sleep(0.01)
    started = [warden, *descendants(warden)]
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    while any(map(alive, started)):
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
