"""The nearest peer beside: Microsoft's `agentlightning` from PyPI, measured in the same rounds.

It has an environment of its own, `.venv-field` in the working directory, made once. What it measures is in
`benchmarks.stores.peer_side`. `install` also makes the environments of `benchmarks.peers`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.stores.empty import Pace
from benchmarks.stores.timing import Cost, Costs, Plan
from benchmarks.stores.waiting import Idle

PACKAGE = "agentlightning==0.3.0"
FOLDER = Path(".venv-field")
SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "AGENTOPS_TELEMETRY": "False",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
"""Without them it would ask the network for a price list at every start, and its proxy would want a key."""


class Peer:
    """Its store server in memory, newly started, and its client over HTTP."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def operations(self, plan: Plan) -> tuple[Costs, list[float]]:
        with self._server() as (url, pid):
            found = self._measure("operations", url, str(pid), json.dumps(asdict(plan)))
        costs = {
            label: {name: Cost(**cost) for name, cost in by.items()} for label, by in found["costs"].items()
        }
        return costs, found["wakes"]

    def empty(self, workers: int, count: int) -> Pace:
        with self._server() as (url, pid), ExitStack() as stack:
            started = [
                stack.enter_context(self._running("worker", url, str(number))) for number in range(workers)
            ]
            return Pace(**self._measure("rollouts", url, str(pid), str(count), ",".join(map(str, started))))

    def waiting(self, count: int, seconds: float) -> Idle:
        with self._server() as (url, pid):
            return Idle(**self._measure("waiting", url, str(pid), str(count), str(seconds)))

    @contextmanager
    def _server(self) -> Iterator[tuple[str, int]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with self._running("server", str(port)) as pid:
            yield f"http://127.0.0.1:{port}", pid

    @contextmanager
    def _running(self, *arguments: str) -> Iterator[int]:
        """The process id of a job that has said that it is ready."""
        command = [str(self._python), "-m", "benchmarks.stores.peer_side", *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **SETTINGS},
        )
        try:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "ready\n":
                if not line:
                    raise RuntimeError(f"the peer's {arguments[0]} did not start")
            yield process.pid
        finally:
            process.communicate()

    def _measure(self, *arguments: str) -> dict[str, Any]:
        command = [str(self._python), "-m", "benchmarks.stores.peer_side", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **SETTINGS})
        if done.returncode:
            raise RuntimeError(f"the peer's {arguments[0]} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def install(requirement: str, folder: Path = FOLDER, python: str = sys.executable) -> Path | str:
    """The interpreter of an environment with that package, made if it was not; or why there is none."""
    found, ready = folder / "bin" / "python", folder / f"{requirement}.ready"
    if ready.exists():
        return found.absolute()
    pip = (str(found), "-m", "pip", "install", "--quiet", "--no-compile")
    steps = {
        f"{python} makes no environment": (python, "-m", "venv", str(folder)),
        f"{requirement} could not be installed": (*pip, requirement),
    }
    for fault, command in steps.items():
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except OSError as error:
            return f"{fault}: {error}"
        except subprocess.CalledProcessError as error:
            return f"{fault}: {(error.stderr.strip() or 'no reason given').splitlines()[-1]}"
    ready.touch()
    return found.absolute()


def find() -> Peer | str:
    """The peer, installed if it was not; or why it can't be measured."""
    python = install(PACKAGE)
    return python if isinstance(python, str) else Peer(python)
