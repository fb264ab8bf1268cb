"""CPU of the gateway before a vLLM server, for short calls and for a harness's long conversation.

python -m benchmarks.served

The server is `benchmarks.vllm_standin`, in a process of its own; the gateway renders and tokenises as with
SmolLM2, asks it, parses its events and stores each call in SQLite. Given is the CPU time of the gateway's
process for each call. A conversation has 60 turns, each with 450 new words and a reply of 200 tokens; its
last request has some 300 KiB.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gateway import Server, running_server

CLIENTS = (16, 1)
CALLS = 64
WARM_UP = 16
ROUNDS = 3
TURNS = 60
NEW_WORDS = 450
SYLLABLES = ("con", "form", "over", "port", "tion", "able", "er", "under", "pre", "ing")
"""A word is three of them, and about three tokens."""
ENDS = 5
"""Turns that are averaged at the beginning and at the end of a conversation."""
CONVERSATIONS = 3
RESULT = Path("benchmarks/results/served.json")


@dataclass(frozen=True)
class Row:
    """CPU milliseconds of a call: the median of several rounds, and their least and most."""

    name: str
    cpu_ms: float
    least: float
    most: float


def row(name: str, rounds: list[float]) -> Row:
    return Row(name, statistics.median(rounds), min(rounds), max(rounds))


class Connection:
    """One connection that is kept open."""

    def __init__(self, server: Server, token: str) -> None:
        self._server, self._token = server, token

    async def open(self) -> Connection:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(
            self._server.host, self._server.port, limit=2**24
        )
        return self

    async def ask(self, body: dict[str, Any]) -> bytes:
        """The body of the reply to a chat request; of a stream, all its chunks."""
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._server.host}\r\n"
            f"content-type: application/json\r\nauthorization: Bearer {self._token}\r\n"
            f"x-lightning-agent: writer\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        head_back = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head_back.startswith(b"http/1.1 200"):
            said = await self._reader.read(2**16)
            raise RuntimeError(f"the gateway answered {head_back!r} {said!r}")
        if b"chunked" in head_back:
            return await self._reader.readuntil(b"\r\n0\r\n\r\n")
        length = int(head_back.split(b"content-length: ")[1].split(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def measure_short(server: Server, clients: int, *, stream: bool) -> float:
    """CPU milliseconds of a call of 30 words."""
    connections = [await Connection(server, server.tokens[n]).open() for n in range(clients)]
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 30}], "stream": stream}

    async def work(connection: Connection, calls: int) -> None:
        for _ in range(calls):
            await connection.ask(body)

    await asyncio.gather(*(work(each, WARM_UP // clients) for each in connections))
    before = server.cpu_seconds()
    await asyncio.gather(*(work(each, CALLS // clients) for each in connections))
    cpu = server.cpu_seconds() - before
    for each in connections:
        each.close()
    return cpu * 1e3 / CALLS


async def measure_conversation(server: Server, number: int) -> tuple[float, float, int]:
    """CPU milliseconds of a call in the first and in the last turns, and the last request's bytes."""
    words = random.Random(number)
    connection = await Connection(server, server.tokens[100 + number]).open()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You work in a shell."}]
    cpu = [server.cpu_seconds()]
    body: dict[str, Any] = {}
    for _ in range(TURNS):
        new = " ".join("".join(words.choices(SYLLABLES, k=3)) for _ in range(NEW_WORDS))
        messages.append({"role": "user", "content": new})
        body = {"model": "m", "messages": messages}
        reply = json.loads(await connection.ask(body))["choices"][0]["message"]
        messages.append({"role": "assistant", "content": reply["content"]})
        cpu.append(server.cpu_seconds())
    connection.close()
    first, last = cpu[ENDS] - cpu[0], cpu[-1] - cpu[-1 - ENDS]
    return first * 1e3 / ENDS, last * 1e3 / ENDS, len(json.dumps(body))


@contextmanager
def standin(*words: str) -> Iterator[str]:
    """The address of a server that stands in for vLLM."""
    command = [sys.executable, "-m", "benchmarks.vllm_standin", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:  # leaving closes its input, which ends it
        assert process.stdout is not None
        yield process.stdout.readline().strip()


async def run() -> list[Row]:
    """All rows."""
    rows = []
    for name, words in (("one-token events", ()), ("stream_interval", ("interval",))):
        with (
            tempfile.TemporaryDirectory() as folder,
            standin(*words) as address,
            running_server(f"sqlite:///{folder}/runs.db", address) as server,
        ):
            for clients in CLIENTS:
                for stream in (False, True):
                    took = [await measure_short(server, clients, stream=stream) for _ in range(ROUNDS)]
                    asked = "streamed" if stream else "whole"
                    rows.append(row(f"{name}, {clients} clients, {asked}", took))
            if words:
                talks = [await measure_conversation(server, number) for number in range(CONVERSATIONS)]
                rows.append(row(f"conversation, first {ENDS} turns", [talk[0] for talk in talks]))
                rows.append(
                    row(
                        f"conversation, last {ENDS} turns ({talks[-1][2] >> 10} KiB)",
                        [talk[1] for talk in talks],
                    )
                )
    return rows


def main() -> None:
    rows = asyncio.run(run())
    table = Table("a reply of 200 tokens from a vLLM server", "CPU ms a call", "least", "most")
    for each in rows:
        table.add_row(each.name, *(f"{value:.2f}" for value in (each.cpu_ms, each.least, each.most)))
    Console().print(table)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(
        json.dumps({each.name: [each.cpu_ms, each.least, each.most] for each in rows}, indent=1)
    )


if __name__ == "__main__":
    main()
