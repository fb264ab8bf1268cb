"""The time the gateway adds to a call, against iterating over the engine's reply in process.

python -m benchmarks.gateway

A call has 1,000 prompt ids and 200 completion ids, with logprobs asked for. The engine answers from
memory, so whatever is measured is the gateway: HTTP, JSON, tokens, and one durable record in SQLite
for each call. The gateway runs in its own process; its CPU time is all that the process used.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gateway_server import COMPLETION, PROMPT, CannedEngine
from benchmarks.processes import cpu_seconds
from lightning_core.dialects.upstream import ChatRequest

CALLS = 2000
WARM_UP = 200
CLIENTS = (1, 16)
MESSAGES = [{"role": "user", "content": "word " * PROMPT}]
GOAL_CPU_MS = 1.5
GOAL_CALLS_PER_SECOND = 400
RESULT = Path("benchmarks/results/gateway.json")

Ask = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Timing:
    """How the calls of one setting went."""

    p50_ms: float
    p99_ms: float
    calls_per_second: float
    cpu_ms: float | None = None
    """CPU of the gateway process for each call; None where there is no gateway."""


@dataclass(frozen=True)
class Server:
    """A gateway's process."""

    pid: int
    host: str
    port: int
    tokens: list[str]
    """One for each rollout that may make calls."""
    paths: list[str]
    """Before `/v1`, of each rollout."""

    def cpu_seconds(self) -> float:
        """CPU time that it and its children have used so far."""
        return cpu_seconds(self.pid)


class Client:
    """One connection that is kept open; reads replies without looking into them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._request = request

    async def ask(self) -> None:
        """Send the request and read the whole reply."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the gateway answered {head!r}")
        if b"chunked" in head:
            await self._reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def connect(server: Server, stream: bool, rollout: int = 0) -> Client:
    """A client of that rollout with its request made up beforehand."""
    body = json.dumps({"model": "m", "messages": MESSAGES, "logprobs": True, "stream": stream}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {server.host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {server.tokens[rollout]}\r\nx-lightning-agent: writer\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=2**20)
    return Client(reader, writer, head.encode() + body)


async def measure(asks: list[Ask], calls: int) -> Timing:
    """Let each client make its share of the calls, one after another."""
    seconds: list[float] = []

    async def work(ask: Ask) -> None:
        for _ in range(calls // len(asks)):
            start = time.perf_counter()
            await ask()
            seconds.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(work(ask) for ask in asks))
    elapsed = time.perf_counter() - start
    cuts = statistics.quantiles(seconds, n=100)
    return Timing(cuts[49] * 1e3, cuts[98] * 1e3, len(seconds) / elapsed)


async def measure_direct(clients: int) -> Timing:
    """The engine without a gateway."""
    engine = CannedEngine()

    async def ask() -> None:
        generation = await engine.chat(ChatRequest(MESSAGES))
        ids: list[int] = []
        logprobs: list[float] = []
        async for delta in generation:
            ids += delta.token_ids
            logprobs += delta.logprobs
        assert len(ids) == len(logprobs) == COMPLETION

    return await measure([ask] * clients, CALLS)


async def measure_gateway(server: Server, clients: int, *, stream: bool) -> Timing:
    """The engine through the gateway."""
    opened = [await connect(server, stream) for _ in range(clients)]
    asks: list[Ask] = [client.ask for client in opened]
    await measure(asks, WARM_UP)
    before = server.cpu_seconds()
    timing = await measure(asks, CALLS)
    cpu = server.cpu_seconds() - before
    for client in opened:
        client.close()
    return Timing(timing.p50_ms, timing.p99_ms, timing.calls_per_second, cpu * 1e3 / CALLS)


@contextmanager
def running_server(url: str, *engine: str) -> Iterator[Server]:
    """A gateway process with the store at that URL, and before a server of that address if one is given."""
    command = [sys.executable, "-m", "benchmarks.gateway_server", url, *engine]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:  # leaving closes its input, which ends it
        assert process.stdout is not None
        hello = json.loads(process.stdout.readline())
        host, port = hello["url"].removeprefix("http://").split(":")
        yield Server(process.pid, host, int(port), hello["tokens"], [""] * len(hello["tokens"]))


async def run() -> dict[str, dict[int, Timing]]:
    """All settings, by name and number of clients."""
    results: dict[str, dict[int, Timing]] = {"direct": {n: await measure_direct(n) for n in CLIENTS}}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(f"sqlite:///{folder}/runs.db") as server,
    ):
        for name, stream in (("gateway", False), ("streamed", True)):
            results[name] = {n: await measure_gateway(server, n, stream=stream) for n in CLIENTS}
    return results


def table(results: dict[str, dict[int, Timing]]) -> Table:
    """The results side by side; "added" is against the engine alone with as many clients."""
    shown = Table(title=f"one call: {PROMPT} prompt ids, {COMPLETION} completion ids with logprobs")
    for column in ("", "clients", "p50 ms", "p99 ms", "added p50", "added p99", "CPU ms", "calls/s"):
        shown.add_column(column, justify="left" if not column else "right")
    for name, by_clients in results.items():
        for clients, timing in by_clients.items():
            direct = results["direct"][clients]
            added = (timing.p50_ms - direct.p50_ms, timing.p99_ms - direct.p99_ms)
            numbers = [timing.p50_ms, timing.p99_ms, *(added if name != "direct" else ()), timing.cpu_ms]
            cells = [f"{number:.2f}" if number is not None else "–" for number in numbers]
            cells = cells if name != "direct" else [*cells[:2], "–", "–", "–"]
            shown.add_row(name, str(clients), *cells, f"{timing.calls_per_second:.0f}")
    return shown


def report(results: dict[str, dict[int, Timing]]) -> dict[str, Any]:
    """Returns the results as they are published."""
    busiest = results["gateway"][max(CLIENTS)]
    return {
        "prompt_ids": PROMPT,
        "completion_ids": COMPLETION,
        "calls": CALLS,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "goals": {
            "cpu_ms": {"goal": GOAL_CPU_MS, "measured": busiest.cpu_ms},
            "calls_per_second": {"goal": GOAL_CALLS_PER_SECOND, "measured": busiest.calls_per_second},
        },
        "settings": {name: {n: asdict(t) for n, t in by.items()} for name, by in results.items()},
    }


def main() -> None:
    results = asyncio.run(run())
    Console().print(table(results))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(report(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
