"""Other projects' gateways before the server of `benchmarks.served`, each with its defaults.

Each is installed once, by `benchmarks.stores.peer.install`. Those that don't conflict share an environment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway import Server
from benchmarks.gateway_server import ROLLOUTS
from benchmarks.stores.peer import FOLDER, PACKAGE, SETTINGS
from benchmarks.vllm_standin import MODEL

HOST = "127.0.0.1"
START_SECONDS = 120.0
NUMBERS = range(len(ROLLOUTS))


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway of another project."""

    name: str
    requirement: str
    does: str
    """Its work for a call, in a line."""
    command: Callable[[Path, int, str, Path], list[str]]
    """Starts it, given its interpreter, its port, the server's address, and a folder for its files."""
    paths: Callable[[int, str, str], list[str]]
    """Each rollout's path before `/v1`, by its port, the server's address and its first line."""
    folder: Path = FOLDER
    python: str = sys.executable


def litellm(python: Path, port: int, server: str, folder: Path) -> list[str]:
    """LiteLLM's proxy, its configuration written as JSON, which is YAML."""
    params = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{server}/v1"}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": params}]}))
    return [str(python.with_name("litellm")), "--config", str(config), "--host", HOST, "--port", str(port)]


def agentlightning_0(python: Path, port: int, server: str, folder: Path) -> list[str]:
    job = ("benchmarks.stores.peer_side", "gateway")
    return [str(python), "-m", *job, str(port), server, str(len(ROLLOUTS))]


def agentlightning_1(python: Path, port: int, server: str, folder: Path) -> list[str]:
    options = (f"host={HOST}", f"port={port}", f"default_proxy.model_name={MODEL}", f"hydra.run.dir={folder}")
    return [str(python), "-m", "agentlightning.server", *options]


def registered(port: int, server: str, hello: str) -> list[str]:
    """Names server and rollouts to Agent Lightning 1.0."""
    post(port, "/api/models", [{"model": MODEL, "endpoint": f"{server}/v1"}])
    post(port, "/api/rollouts", [{"input": {}, "rollout_id": str(number)} for number in NUMBERS])
    return [f"/proxy/rollout/{number}/attempt/0/mode/train/openai" for number in NUMBERS]


def rllm(python: Path, port: int, server: str, folder: Path) -> list[str]:
    gateway = str(python.with_name("rllm-model-gateway"))
    options = ("--host", HOST, "--port", str(port), "--db-path", str(folder / "rllm.db"))
    return [gateway, *options, "--worker", f"{server}/v1"]


PEERS = (
    Peer(
        "LiteLLM 1.108.7",
        "litellm[proxy]==1.108.7",
        "forwards; stores nothing, knows no token ids",
        litellm,
        lambda port, server, hello: [""] * len(ROLLOUTS),
    ),
    Peer(
        "agentlightning 0.3.0",
        PACKAGE,
        "LiteLLM with spans, the server's token ids in memory; cuts a whole reply up to stream it",
        agentlightning_0,
        lambda port, server, hello: json.loads(hello),
    ),
    Peer(
        "agentlightning 1.0.2",
        "agentlightning==1.0.2",
        "forwards; keeps the server's token ids and logprobs in memory",
        agentlightning_1,
        registered,
        folder=Path(".venv-field-1"),
        python=sys.executable if sys.version_info >= (3, 12) else "python3.12",
    ),
    Peer(
        "rLLM 0.1.0",
        "rllm-model-gateway==0.1.0",
        "forwards; stores the server's token ids and logprobs in SQLite",
        rllm,
        lambda port, server, hello: [f"/sessions/{number}" for number in NUMBERS],
    ),
)


def post(port: int, path: str, body: Any) -> None:
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as answer:
        answer.read()


@contextmanager
def running(peer: Peer, python: Path, server: str, folder: Path) -> Iterator[Server]:
    """The peer's gateway before the server of that address, once it answers."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    out, log = folder / "out", folder / "log"
    with out.open("w") as said, log.open("w") as logged:
        process = subprocess.Popen(
            peer.command(python, port, server, folder),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=logged,
            env={**os.environ, **SETTINGS},
        )
    try:
        wait(process, port, log)
        paths = peer.paths(port, server, out.read_text().partition("\n")[0])
        yield Server(process.pid, HOST, port, ["none"] * len(ROLLOUTS), paths)
    finally:
        process.terminate()
        process.communicate()


def wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Returns once the process accepts connections."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), socket.create_connection((HOST, port)):
            return
        time.sleep(0.2)
    raise RuntimeError(f"it did not start: {log.read_text()[-500:]}")
