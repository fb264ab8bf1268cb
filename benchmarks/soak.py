"""Whether a gateway stays as it is over tens of thousands of calls: memory, descriptors, log, latency.

python -m benchmarks.soak                 # 50,000 calls, minutes
python -m benchmarks.soak --calls 3000    # a look

Gateway, SQLite and the tiny engine run in a process of their own, measured from outside. Rollouts are
enqueued, leased, played by several clients at once and finished, as in a run, so that the tables grow.
Exits with 1 if memory, descriptors, write-ahead log or latency are not level, and publishes the figures in
benchmarks/results/README.md if all calls were made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.gateway import Client
from benchmarks.intervals import Interval, mean_of
from benchmarks.page import PAGE, RECORDS, insert
from benchmarks.processes import cpu_seconds, machine
from benchmarks.tiny_server import RUN, TOKENS, TinyServer
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Attempt, Rollout, Task
from lightning_core.stores.base import Store
from lightning_core.trainer.parts import open_store

CALLS: Final = 50_000
CLIENTS: Final = 16
SAMPLE: Final = 250
"""Calls between two looks at the process."""
ENDS: Final = 1_000
"""Calls at the beginning and at the end whose latencies are compared."""
WARM: Final = 0.1
"""Share of the calls that come before anything is measured."""
BATCH: Final = 64
"""Rollouts enqueued at once."""
TOKENS_KEPT: Final = 131_072
"""The engine keeps the keys and values of so many prompt tokens; they are filled before the first call."""
ATTEMPTS_KEPT: Final = 4_096
"""The gateway remembers the conversations of so many attempts; so many are played before the first call."""
STRETCHES: Final = 10
MOST_KIB: Final = 32.0
"""KiB that 1,000 calls may add to the memory."""
MOST_WAL_MIB: Final = 64.0
MOST_RATIO: Final = 1.2
"""Largest ratio of the last thousand's median latency to the first's."""
RECORD: Final = RECORDS / "soak.json"


@dataclass(frozen=True, slots=True)
class Sample:
    """The process at one moment."""

    calls: int
    rss_bytes: int
    descriptors: int
    wal_bytes: int
    cpu_seconds: float


@dataclass(slots=True)
class Soak:
    """The measurements of a soak."""

    samples: list[Sample] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long each call took, in the order they ended."""
    took: float = 0.0
    """All of them."""

    @property
    def warm(self) -> int:
        """The first call that counts."""
        return int(WARM * len(self.seconds))

    @property
    def measured(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.calls >= self.warm]


# the load ---------------------------------------------------------------------------------


class Load:
    """The clients, and the rollouts that they play."""

    def __init__(self, server: TinyServer, store: Store, calls: int, name: str = "soak") -> None:
        self._server, self._store, self._calls, self._name = server, store, calls, name
        self._rollouts = 0
        self._begun = 0
        self._ready: list[Attempt] = []
        self._leasing = asyncio.Lock()
        self.soak = Soak()

    async def run(self, only: str = "") -> Soak:
        """Make the calls; `only` those to that path."""
        host, port = self._server.url.removeprefix("http://").split(":")
        opened = [await asyncio.open_connection(host, int(port), limit=2**20) for _ in range(CLIENTS)]
        began = time.perf_counter()
        self._look()
        await asyncio.gather(*(self._client(f"{host}:{port}", *streams, only) for streams in opened))
        self.soak.took = time.perf_counter() - began
        for _, writer in opened:
            writer.close()
            await writer.wait_closed()
        return self.soak

    async def _client(
        self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, only: str
    ) -> None:
        """One connection, over which rollout after rollout is played."""
        while self._begun < self._calls:
            attempt = await self._lease()
            token = TOKENS.issue(attempt.rollout, attempt.number)
            for path, body in turns(attempt.rollout.id):
                if only not in path:
                    continue
                self._begun += 1
                call_id = f"{attempt.rollout.id}-{self._begun}"
                request = _request(host, path, token, call_id, body)
                start = time.perf_counter()
                await Client(reader, writer, request).ask()
                self.soak.seconds.append(time.perf_counter() - start)
                if len(self.soak.seconds) % SAMPLE == 0:
                    self._look()
            await self._store.finish(attempt, reward=1.0)

    async def _lease(self) -> Attempt:
        async with self._leasing:
            if not self._ready:
                names = [f"{self._name}-{self._rollouts + number}" for number in range(BATCH)]
                self._rollouts += BATCH
                await self._store.enqueue([_rollout(name) for name in names])
                self._ready = await self._store.lease("soak", BATCH, 3600.0, run_id=RUN.id)
            return self._ready.pop()

    def _look(self) -> None:
        server, calls = self._server, len(self.soak.seconds)
        wal, cpu = server.wal_bytes(), cpu_seconds(server.pid)
        self.soak.samples.append(Sample(calls, server.rss_bytes(), server.descriptors(), wal, cpu))
        if calls % (20 * SAMPLE) == 0:
            print(
                f"{calls:,} calls, {server.rss_bytes() / 2**20:.1f} MiB, log {wal / 2**20:.1f} MiB",
                flush=True,
            )


def turns(rollout_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, body) of the calls of one rollout: a conversation, and one call in each other dialect."""
    question = f"Schema: boats(id, name, speed)\nQuestion: List boat {rollout_id}"
    first = {"role": "user", "content": question}
    common = {"model": "m", "temperature": 1.0}
    yield "/v1/chat/completions", {**common, "messages": [first], "max_tokens": 4}
    further = [first, {"role": "assistant", "content": "SELECT"}, {"role": "user", "content": "Go on"}]
    yield "/v1/chat/completions", {**common, "messages": further, "max_tokens": 4, "stream": True}
    yield "/v1/responses", {**common, "input": question, "max_output_tokens": 4, "stream": True}
    yield "/v1/messages", {**common, "messages": [first], "max_tokens": 4}
    yield "/v1/completions", {**common, "prompt": question, "max_tokens": 4, "logprobs": 1}


def _rollout(name: str) -> Rollout:
    return Rollout(id=name, run_id=RUN.id, task=Task(input={"question": name}), group_id=name, step=0)


def _request(host: str, path: str, token: str, call_id: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {token}\r\nx-lightning-agent: writer\r\nx-lightning-call: {call_id}\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def fill_prefixes(server: TinyServer, store: Store) -> None:
    """Let the engine fill what it keeps of prompts, and its longest rows: memory that it takes once."""
    draw, length = random.Random(0), 2_000
    await store.enqueue([_rollout("long")])
    (attempt,) = await store.lease("long", 1, 3600.0, run_id=RUN.id)
    token = TOKENS.issue(attempt.rollout, attempt.number)
    host, port = server.url.removeprefix("http://").split(":")

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
        body = {"prompt": [draw.randrange(3, 800) for _ in range(length)], "max_tokens": 2}
        request = _request(f"{host}:{port}", "/v1/completions", token, f"warm-{number}", body)
        await Client(reader, writer, request).ask()
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*map(one, range(math.ceil(1.1 * TOKENS_KEPT / length))))
    await store.finish(attempt, reward=0.0)


# what it says -----------------------------------------------------------------------------


def slope(x: Sequence[float], y: Sequence[float]) -> Interval:
    """Returns the slope of the least-squares line; its 95 % interval is by Student's t from the rises between
    stretches.

    Resident memory moves in steps that stay, so neighbouring residuals are alike, and the usual interval is
    far too narrow. The rises from the mean of one stretch to that of the next are nearly independent: over
    random walks of 200 samples the interval holds the truth in 88 of 100, over independent noise always.
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    from_mean = xs - xs.mean()
    value = float(from_mean @ ys) / float(from_mean @ from_mean)
    ways, heights = (
        np.diff([part.mean() for part in np.array_split(each, STRETCHES + 1)]) for each in (xs, ys)
    )
    rises = mean_of([float(rise) for rise in heights / ways])
    half = rises.high - rises.value
    return Interval(value, value - half, value + half)


def memory_slope(soak: Soak) -> Interval:
    """KiB for each 1,000 calls after warm-up."""
    found = slope(
        [one.calls / 1000 for one in soak.measured], [one.rss_bytes / 1024 for one in soak.measured]
    )
    return Interval(found.value, found.low, found.high)


def latencies(seconds: Sequence[float]) -> tuple[float, float]:
    """(p50, p99) in milliseconds."""
    p50, p99 = np.percentile(np.asarray(seconds) * 1e3, (50, 99))
    return float(p50), float(p99)


def cpu_ms(samples: Sequence[Sample]) -> float:
    """CPU of the process for each call between the first and the last of these samples."""
    first, last = samples[0], samples[-1]
    return 1e3 * (last.cpu_seconds - first.cpu_seconds) / (last.calls - first.calls)


def figures(soak: Soak) -> dict[str, Any]:
    """The measurement as it is written down."""
    measured, grown = soak.measured, memory_slope(soak)
    end = ENDS // SAMPLE
    first, last = soak.seconds[soak.warm : soak.warm + ENDS], soak.seconds[-ENDS:]
    open_files = [sample.descriptors for sample in measured]
    return {
        "calls": len(soak.seconds),
        "warm_up": soak.warm,
        "clients": CLIENTS,
        "calls_per_second": len(soak.seconds) / soak.took,
        "kib_per_1000_calls": asdict(grown),
        "rss_mib": [measured[0].rss_bytes / 2**20, measured[-1].rss_bytes / 2**20],
        "descriptors": [min(open_files), max(open_files)],
        "wal_mib": max(sample.wal_bytes for sample in soak.samples) / 2**20,
        "first_ms": latencies(first),
        "last_ms": latencies(last),
        "ratio_p50": latencies(last)[0] / latencies(first)[0],
        "cpu_ms": [cpu_ms(measured[: end + 1]), cpu_ms(measured[-end - 1 :])],
        "machine": machine(),
    }


def faults(found: dict[str, Any]) -> list[str]:
    """Returns the measurements that are not level."""
    grown, open_files = found["kib_per_1000_calls"], found["descriptors"]
    wrong = []
    if grown["low"] > MOST_KIB:
        wrong.append(
            f"memory grows by {grown['value']:.0f} KiB for each 1,000 calls, more than {MOST_KIB:.0f}"
        )
    if open_files[0] != open_files[1]:
        wrong.append(f"between {open_files[0]} and {open_files[1]} descriptors were open")
    if found["wal_mib"] > MOST_WAL_MIB:
        wrong.append(f"the write-ahead log reached {found['wal_mib']:.0f} MiB, more than {MOST_WAL_MIB:.0f}")
    if found["ratio_p50"] > MOST_RATIO:
        wrong.append(f"the last {ENDS} calls took {found['ratio_p50']:.2f} times as long as the first")
    return wrong


def render(found: dict[str, Any]) -> str:
    """The figures as a table."""
    grown, first, last = found["kib_per_1000_calls"], found["first_ms"], found["last_ms"]
    where = found["machine"]
    lines = (
        (
            "calls, at once, a second",
            f"{found['calls']:,}, {found['clients']}, {found['calls_per_second']:.0f}",
            "",
        ),
        (
            "memory, KiB for each 1,000 calls (95 % interval)",
            f"{grown['value']:.1f} ({grown['low']:.1f} to {grown['high']:.1f})",
            f"≤ {MOST_KIB:.0f}",
        ),
        ("memory after warm-up, at the end", " / ".join(f"{mib:.1f} MiB" for mib in found["rss_mib"]), ""),
        ("open descriptors, least / most", " / ".join(map(str, found["descriptors"])), "equal"),
        ("write-ahead log, most", f"{found['wal_mib']:.1f} MiB", f"≤ {MOST_WAL_MIB:.0f} MiB"),
        (f"p50 / p99 of the first {ENDS:,} calls", f"{first[0]:.1f} / {first[1]:.1f} ms", ""),
        (f"p50 / p99 of the last {ENDS:,} calls", f"{last[0]:.1f} / {last[1]:.1f} ms", ""),
        ("p50 of the last ÷ of the first", f"{found['ratio_p50']:.2f}", f"≤ {MOST_RATIO}"),
        ("CPU of a call, first / last", " / ".join(f"{ms:.2f} ms" for ms in found["cpu_ms"]), ""),
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    place = f"{where['cores']} cores of {where['processor']}, {where['memory_gib']} GiB, {where['kernel']}"
    return f"| on {place} | measured | bound |\n|---|---:|---:|\n{table}"


class Section:
    """The section of the page."""

    name = "soak"
    title = "Fifty thousand calls in a row"
    command = "make soak"


async def measure(server: TinyServer, calls: int) -> Soak:
    """Make so many calls of a server that is warm."""
    async with open_store(server.store_url, load_plugins()) as store:
        await fill_prefixes(server, store)
        await Load(server, store, min(calls, ATTEMPTS_KEPT), "warm").run(only="responses")
        return await Load(server, store, calls).run()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--calls", type=int, default=CALLS)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lightning-soak-") as folder, TinyServer(Path(folder)) as server:
        soak = asyncio.run(measure(server, asked.calls))
    found = figures(soak)
    print(render(found))
    if asked.calls >= CALLS:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        PAGE.write_text(insert(PAGE.read_text(), Section(), render(found)))
    if wrong := faults(found):
        sys.exit("not level: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
