"""CPU of gateways before a vLLM server, for short calls and for a harness's long conversation.

python -m benchmarks.served

The server is `benchmarks.vllm_standin`, in a process of its own. Our gateway renders and tokenises as with
SmolLM2, asks it, parses its events and stores each call in SQLite; `benchmarks.peers` says what others do.
All run at once and are measured in turn, in each round. Given is the CPU time of a gateway's process and its
children for each call. A conversation has 60 turns, each with 450 new words and a reply of 200 tokens; its
last request has some 370 KiB. The figures go to benchmarks/results.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gateway import Server, running_server
from benchmarks.page import PAGE, RECORDS, insert
from benchmarks.peers import PEERS, running
from benchmarks.stores.peer import install
from benchmarks.stores.record import Circumstances, circumstances
from benchmarks.stores.tables import spread, table

CLIENTS = (16, 1)
CALLS = 32
WARM_UP = 16
ROUNDS = 5
TURNS = 60
NEW_WORDS = 450
SYLLABLES = ("con", "form", "over", "port", "tion", "able", "er", "under", "pre", "ing")
"""A word is three of them, and about three tokens."""
ENDS = 5
"""Turns that are averaged at the beginning and at the end of a conversation."""
SETTLED_SECONDS = 0.5
"""Before the clock is read: some gateways go on with a call after its reply."""
OURS = "ours"
OLDER = "ours, vLLM before 0.28"
DOES = {
    OURS: "tokenises, asks for token ids and logprobs, 128 tokens at a time if the reply is whole, and "
    "stores each call in SQLite",
    OLDER: "the same, before a server that sends each token by itself",
}
RESULT = RECORDS / "served.json"


class Served:
    """The section of the page."""

    name = "served"
    title = "The gateway beside others"
    command = "python -m benchmarks.served"


@dataclass(slots=True)
class Record:
    """A run of the benchmark."""

    does: dict[str, str]
    """A candidate's work for a call, in a line; of one that was left out, the reason."""
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """CPU milliseconds of a call in each round, by setting and candidate."""
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """The answer to a call that was refused, by setting and candidate."""
    circumstances: Circumstances | None = None

    def measured(self) -> set[str]:
        """Candidates that are in any row."""
        return {name for by in self.rounds.values() for name in by}


class RefusedError(Exception):
    """A gateway answered with a status other than 200."""


class Connection:
    """One connection that is kept open, of one rollout."""

    def __init__(self, server: Server, rollout: int) -> None:
        self._server, self._token = server, server.tokens[rollout]
        self._path = f"{server.paths[rollout]}/v1/chat/completions"

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
            f"POST {self._path} HTTP/1.1\r\nhost: {self._server.host}\r\n"
            f"content-type: application/json\r\nauthorization: Bearer {self._token}\r\n"
            f"x-lightning-agent: writer\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        head_back = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head_back.startswith(b"http/1.1 200"):
            said = await self._reader.read(2**16)
            raise RefusedError(f"{head_back.split()[1].decode()} {said.decode()}")
        if b"chunked" in head_back:
            reply = await self._reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = int(head_back.split(b"content-length: ")[1].split(b"\r\n")[0])
            reply = await self._reader.readexactly(length)
        if b'"length"' not in reply:
            raise RuntimeError(f"a reply was cut short: {reply[-500:]!r}")
        return reply

    def close(self) -> None:
        self._writer.close()


async def settled(server: Server) -> float:
    """The CPU seconds of a gateway that has done all it does for the calls so far."""
    await asyncio.sleep(SETTLED_SECONDS)
    return server.cpu_seconds()


async def play(server: Server, clients: int, calls: int, *, stream: bool) -> None:
    """Calls of 30 words by so many clients at once, each on a connection of its own."""
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 30}], "stream": stream}

    async def work(number: int) -> None:
        connection = await Connection(server, number).open()
        for _ in range(calls // clients):
            await connection.ask(body)
        connection.close()

    await asyncio.gather(*map(work, range(clients)))


async def measure_short(server: Server, clients: int, *, stream: bool) -> float:
    """CPU milliseconds of a short call."""
    await play(server, clients, WARM_UP, stream=stream)
    before = await settled(server)
    await play(server, clients, CALLS, stream=stream)
    return (await settled(server) - before) * 1e3 / CALLS


async def measure_conversation(server: Server, number: int) -> tuple[float, float]:
    """CPU milliseconds of a call in the first and in the last turns."""
    words = random.Random(number)
    connection = await Connection(server, 100 + number).open()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You work in a shell."}]
    cpu = {0: await settled(server)}
    for turn in range(1, TURNS + 1):
        new = " ".join("".join(words.choices(SYLLABLES, k=3)) for _ in range(NEW_WORDS))
        messages.append({"role": "user", "content": new})
        reply = json.loads(await connection.ask({"model": "m", "messages": messages}))
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        if turn in (ENDS, TURNS - ENDS, TURNS):
            cpu[turn] = await settled(server)
    connection.close()
    return (cpu[ENDS] - cpu[0]) * 1e3 / ENDS, (cpu[TURNS] - cpu[TURNS - ENDS]) * 1e3 / ENDS


@contextmanager
def standin(*words: str) -> Iterator[str]:
    """The address of a server that stands in for vLLM."""
    command = [sys.executable, "-m", "benchmarks.vllm_standin", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:  # leaving closes its input, which ends it
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@contextmanager
def candidates(record: Record) -> Iterator[dict[str, Server]]:
    """All gateways by name, running; of a peer that is left out the record has the reason."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, Server] = {}
        for name, words in ((OURS, ("interval",)), (OLDER, ())):
            address = stack.enter_context(standin(*words))
            url = f"sqlite:///{folder}/{len(servers)}.db"
            servers[name] = stack.enter_context(running_server(url, address))
        for peer in PEERS:
            record.does[peer.name] = peer.does
            python = install(peer.requirement, peer.folder, peer.python)
            if isinstance(python, str):
                record.does[peer.name] = f"left out: {python}"
                continue
            (own := folder / peer.name).mkdir()
            try:
                servers[peer.name] = stack.enter_context(running(peer, python, address, own))
            except RuntimeError as error:
                record.does[peer.name] = f"left out: {error}"
        yield servers


async def measure_round(record: Record, servers: dict[str, Server], number: int) -> None:
    """Measure each setting at all gateways, one after another."""
    for clients in CLIENTS:
        for stream in (False, True):
            setting = f"{clients} client{'s' * (clients > 1)}, {'streamed' if stream else 'whole'}"
            for name, server in servers.items():
                try:
                    took = await measure_short(server, clients, stream=stream)
                except RefusedError as error:
                    record.refused.setdefault(setting, {})[name] = str(error)
                    continue
                record.rounds.setdefault(setting, {}).setdefault(name, []).append(took)
    for name, server in servers.items():
        ends = await measure_conversation(server, number)
        for which, took in zip(("first", "last"), ends, strict=True):
            setting = f"conversation, {which} {ENDS} of {TURNS} turns"
            record.rounds.setdefault(setting, {}).setdefault(name, []).append(took)


def run(rounds: int = ROUNDS) -> Record:
    """Measure everything."""
    record, load = Record(dict(DOES)), os.getloadavg()[0]
    with candidates(record) as servers:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            asyncio.run(measure_round(record, servers, number))
    record.circumstances = circumstances(load)
    return record


def render(record: Record) -> str:
    """The tables of the page: CPU of a call, everyone's in terms of ours, and their work for it."""
    found, names = record.circumstances, [name for name in record.does if name in record.measured()]
    assert found is not None
    machine, (begin, end) = found.machine, found.load

    def cell(setting: str, name: str) -> str:
        values = record.rounds[setting].get(name)
        return spread(values, 1) if values else f"refused: {record.refused[setting][name]}"

    def ratio(setting: str, name: str) -> str:
        by = record.rounds[setting]
        return spread([a / b for a, b in zip(by[name], by[OURS], strict=True)], 2) if name in by else "–"

    costs = [[setting, *(cell(setting, name) for name in names)] for setting in record.rounds]
    others = [name for name in names if name != OURS]
    ratios = [[setting, *(ratio(setting, name) for name in others)] for setting in record.rounds]
    parts = (
        "CPU milliseconds of a call with a reply of 200 tokens: median and range of the rounds. Measured "
        f"{found.made_at[:10]} on {machine['cores']} cores of {machine['processor']}, at a load of "
        f"{begin:.0f} to {end:.0f}.",
        table(["", *names], costs),
        "The same ÷ ours, within each round; above 1 a call costs more than with ours, below 1 less:",
        table(["", *others], ratios),
        "\n".join(f"- {name}: {does}." for name, does in record.does.items()),
    )
    return "\n\n".join(parts)


def main() -> None:
    record = run()
    RESULT.write_text(json.dumps(asdict(record), indent=1) + "\n")
    PAGE.write_text(insert(PAGE.read_text(), Served(), render(record)))
    print(render(record))


if __name__ == "__main__":
    main()
