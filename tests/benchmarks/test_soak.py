"""The soak sees what is not level, and a short one runs to its end."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from pathlib import Path
from random import Random

from benchmarks.soak import BATCH, CLIENTS, SAMPLE, Load, Sample, Soak, faults, figures, render, slope, turns
from benchmarks.tiny_server import TinyServer
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Status
from lightning_core.trainer.parts import open_store

LEVEL = [Sample(calls, 2**30, 40, 2**22, calls / 100) for calls in range(0, 50_001, 250)]


def soaked(samples: list[Sample], last_ms: float = 10.0) -> Soak:
    return Soak(samples, [0.01] * 49_000 + [last_ms / 1e3] * 1_000, 100.0)


def test_what_is_level_has_no_fault() -> None:
    found = figures(soaked(LEVEL))
    assert faults(found) == []
    assert "| 0.0 (0.0 to 0.0) | ≤ 32 |" in render(found)


def test_each_kind_of_growth_is_a_fault() -> None:
    leak = [
        Sample(s.calls, s.rss_bytes + 100 * s.calls, s.descriptors, s.wal_bytes, s.cpu_seconds) for s in LEVEL
    ]
    assert "memory grows by 98 KiB" in faults(figures(soaked(leak)))[0]
    opened = [
        Sample(s.calls, s.rss_bytes, s.descriptors + s.calls // 9_000, s.wal_bytes, s.cpu_seconds)
        for s in LEVEL
    ]
    assert "between 40 and 45 descriptors" in faults(figures(soaked(opened)))[0]
    long = [
        Sample(s.calls, s.rss_bytes, s.descriptors, s.wal_bytes + 2_000 * s.calls, s.cpu_seconds)
        for s in LEVEL
    ]
    assert "write-ahead log reached 99 MiB" in faults(figures(soaked(long)))[0]
    assert "took 1.30 times as long" in faults(figures(soaked(LEVEL, last_ms=13.0)))[0]


def test_the_interval_of_a_slope_knows_that_neighbours_are_alike() -> None:
    """Draws a hundred walks without a direction: few seem to have one; by the usual interval most do."""
    draw, x, wrong = Random(0), list(range(200)), 0
    for _ in range(100):
        walk = list(accumulate(draw.gauss(0, 1) for _ in x))
        found = slope(x, walk)
        wrong += not found.low < 0.0 < found.high
    assert wrong <= 20
    found = slope(x, [3.0 * each + draw.gauss(0, 1) for each in x])
    assert 2.98 < found.low < 3.0 < found.high < 3.02


def test_a_short_soak_makes_its_calls_and_finishes_its_rollouts(tmp_path: Path) -> None:
    async def run(server: TinyServer) -> Soak:
        async with open_store(server.store_url, load_plugins()) as store:
            soak = await Load(server, store, 300).run()
            done = await store.find_rollouts("run", status=Status.SUCCEEDED)
            calls = await store.get_calls([rollout.id for rollout in done])
            assert {len(each) for each in calls.values()} == {len(list(turns("soak-0")))}
            assert sum(map(len, calls.values())) == len(soak.seconds)
            assert len(done) <= 300 // 5 + CLIENTS + BATCH
        return soak

    with TinyServer(tmp_path) as server:
        soak = asyncio.run(run(server))
    assert len(soak.seconds) >= 300
    assert {sample.calls for sample in soak.samples} == {0, SAMPLE}
