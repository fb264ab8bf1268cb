"""Measures the parts, round by round: in each round every store and the peer, one after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stores import conversation, empty, gateway, operations, peer, sites, sizes, waiting
from benchmarks.stores.empty import Pace
from benchmarks.stores.peer import Peer
from benchmarks.stores.record import PEER, Record, circumstances
from benchmarks.stores.sites import SITES, Site
from benchmarks.stores.timing import Cost, Plan

PLAN = Plan()


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of everything is measured."""

    rounds: int = 3
    plan: Plan = PLAN
    workers: tuple[int, ...] = (1, 2)
    empty: int = 3000
    peer_empty: int = 300
    waiting: int = 4000
    waiting_seconds: float = 5.0
    sizes: tuple[int, ...] = sizes.SIZES
    size_count: int = 256
    size_repeats: int = 5
    gateway_calls: int = 50_000
    gateway_stores: tuple[str, ...] = ("sqlite", "postgres")


def rounds(amount: Amount) -> Iterator[int]:
    """The numbers of the rounds, each told of."""
    for number in range(1, amount.rounds + 1):
        print(f"round {number} of {amount.rounds}", flush=True)
        yield number


def measure_operations(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    for _ in rounds(amount):
        costs, wakes = {}, {}
        for name in stores:
            with SITES[name]() as site:
                costs[name], wakes[name] = asyncio.run(operations.measure(site, amount.plan))
        if other is not None:
            costs[PEER], wakes[PEER] = other.operations(amount.plan)
        record.operations.append(costs)
        record.wakes.append(wakes)


def measure_empty(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    for _ in rounds(amount):
        paces: dict[str, dict[int, Pace]] = {name: {} for name in stores}
        for name in stores:
            for workers in amount.workers:
                with SITES[name]() as site:
                    if site.shared or workers == 1:
                        paces[name][workers] = asyncio.run(empty.measure(site, workers, amount.empty))
        if other is not None:
            paces[PEER] = {workers: other.empty(workers, amount.peer_empty) for workers in amount.workers}
        record.empty.append(paces)


def measure_waiting(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    for _ in rounds(amount):
        idle = {}
        for name in stores:
            with SITES[name](counted=True) as site:
                idle[name] = asyncio.run(waiting.measure(site, amount.waiting, amount.waiting_seconds))
        if other is not None:
            idle[PEER] = other.waiting(amount.waiting, amount.waiting_seconds)
        record.waiting.append(idle)


def measure_sizes(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    """Measures our stores alone: the peer has none that would hold a million rollouts."""
    for name in stores:
        with SITES[name]() as site:
            record.sizes[name] = asyncio.run(_sizes(site, amount))


async def _sizes(site: Site, amount: Amount) -> dict[int, list[dict[str, Cost]]]:
    found: dict[int, list[dict[str, Cost]]] = {}
    async for size, costs in sizes.measure(site, amount.sizes, amount.size_count, amount.size_repeats):
        found.setdefault(size, []).append(costs)
        print(f"{site.name}: {size:,} rollouts", flush=True)
    return found


def measure_gateway(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    for name in stores:
        if name in amount.gateway_stores:
            with SITES[name]() as site:
                record.gateway[name] = asyncio.run(gateway.measure(site, amount.gateway_calls))


def measure_http(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    """The store over HTTP beside the SQLite store that it serves."""
    for _ in rounds(amount):
        costs = {}
        for name, made in (("sqlite", sites.sqlite), ("http", sites.http)):
            with made() as site:
                costs[name], _ = asyncio.run(operations.measure(site, amount.plan))
        record.http.append(costs)


def measure_conversation(record: Record, amount: Amount, stores: list[str], other: Peer | None) -> None:
    """Measures the stores that can tell what they hold."""
    for _ in rounds(amount):
        talks = {}
        for name in stores:
            with SITES[name]() as site:
                if site.held is not None:
                    talks[name] = asyncio.run(conversation.measure(site))
        record.conversation.append(talks)


PARTS: dict[str, Callable[[Record, Amount, list[str], Peer | None], None]] = {
    "operations": measure_operations,
    "empty": measure_empty,
    "waiting": measure_waiting,
    "sizes": measure_sizes,
    "gateway": measure_gateway,
    "http": measure_http,
    "conversation": measure_conversation,
}


def run(path: Path, amount: Amount, parts: list[str], stores: list[str], other: Peer | None) -> Record:
    """Measure these parts and write them down beside those that were measured before."""
    for part in parts:
        print(f"-- {part}", flush=True)
        load, found = os.getloadavg()[0], Record()
        PARTS[part](found, amount, stores, other)
        found.circumstances[part] = circumstances(load)
        Record.read(path).updated(found).write(path)
    return Record.read(path)


def find_peer() -> Peer | None:
    """The peer, or None with a line that says why not."""
    found = peer.find()
    if isinstance(found, str):
        print(f"The peer is left out: {found}", flush=True)
        return None
    return found
