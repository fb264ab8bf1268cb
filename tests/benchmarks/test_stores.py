"""The benchmark of stores really runs, small, and the page says what its record says. No time is asserted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.page import insert
from benchmarks.processes import cpu_seconds, rss_bytes
from benchmarks.stores.__main__ import Stores
from benchmarks.stores.gateway import Memory, slope
from benchmarks.stores.plot import plot
from benchmarks.stores.record import PATH, PEER, Record
from benchmarks.stores.run import Amount, run
from benchmarks.stores.sites import SITES
from benchmarks.stores.tables import render, spread
from benchmarks.stores.timing import Callers, Plan

ROOT = Path(__file__).parents[2]
SMALL = Amount(
    rounds=1,
    plan=Plan(callers=(Callers("1 caller", 1, 10), Callers("4 callers", 4, 20)), bulks=1, wakes=1),
    workers=(1, 2),
    empty=20,
    waiting=20,
    waiting_seconds=0.3,
    sizes=(128, 640),
    size_count=8,
    size_repeats=2,
    gateway_calls=64,
)
OPERATIONS = {"enqueue", "lease", "heartbeat", "record a call", "read 5 calls", "finish"}


@pytest.mark.parametrize("store", SITES)
def test_operations_are_measured_on_every_store_at_every_size(store: str, tmp_path: Path) -> None:
    path = tmp_path / "stores.json"
    record = run(path, SMALL, ["operations", "sizes"], [store], None)
    (costs,) = record.operations
    assert costs[store]["1 caller"].keys() == OPERATIONS | {"enqueue, 500 at once"}
    assert costs[store]["4 callers"].keys() == OPERATIONS
    assert all(cost.wall_ms > 0 and cost.client_ms > 0 for cost in costs[store]["1 caller"].values())
    assert len(record.wakes[0][store]) == SMALL.plan.wakes
    assert {size: len(repeats) for size, repeats in record.sizes[store].items()} == {128: 2, 640: 2}
    written = Record.read(path)
    assert render(written).count("\n|") > 20
    assert written.circumstances.keys() == record.circumstances.keys()


def test_the_store_over_http_is_measured_beside_the_one_it_serves(tmp_path: Path) -> None:
    plan = Plan(callers=(Callers("1 caller", 1, 10), Callers("16 callers", 16, 20)), bulks=1, wakes=1)
    record = run(tmp_path / "stores.json", replace(SMALL, plan=plan), ["http"], [], None)
    (costs,) = Record.read(tmp_path / "stores.json").http
    assert costs["http"]["16 callers"].keys() == OPERATIONS
    assert all(cost.wall_ms > 0 and cost.client_ms > 0 for cost in costs["http"]["16 callers"].values())
    assert "| record a call |" in render(record)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_empty_rollouts_are_run_by_workers(store: str, tmp_path: Path) -> None:
    record = run(tmp_path / "stores.json", SMALL, ["empty"], [store], None)
    paces = record.empty[0][store]
    assert set(paces) == ({1} if store == "memory" else {1, 2})
    assert all(pace.per_second > 0 for pace in paces.values())


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_who_waits_for_a_server_sends_it_nothing_meanwhile(store: str, tmp_path: Path) -> None:
    record = run(tmp_path / "stores.json", SMALL, ["waiting"], [store], None)
    assert [by[store].statements for by in record.waiting] == [0.0] * SMALL.rounds


def test_the_gateway_is_measured_over_calls_that_were_all_recorded(tmp_path: Path) -> None:
    record = run(tmp_path / "stores.json", SMALL, ["gateway"], ["sqlite"], None)
    memory = record.gateway["sqlite"]
    assert memory.calls[-1] >= SMALL.gateway_calls
    assert len(memory.calls) == len(memory.mib)
    assert min(memory.mib) > 1


def test_a_conversation_is_measured_on_a_store_that_tells_what_it_holds(tmp_path: Path) -> None:
    record = run(tmp_path / "stores.json", SMALL, ["conversation"], ["memory", "sqlite"], None)
    (talks,) = Record.read(tmp_path / "stores.json").conversation
    assert set(talks) == {"sqlite"}
    assert 0 < talks["sqlite"].mib < 2
    assert "| SQLite | 1." in render(record)


def test_what_is_measured_anew_replaces_only_its_own_part(tmp_path: Path) -> None:
    path = tmp_path / "stores.json"
    before = run(path, replace(SMALL, sizes=(64,)), ["sizes", "waiting"], ["memory"], None)
    after = run(path, replace(SMALL, sizes=(64,)), ["sizes"], ["sqlite"], None)
    assert set(after.sizes) == {"memory", "sqlite"}
    assert after.sizes["memory"] == before.sizes["memory"]
    assert after.waiting == before.waiting


def test_a_table_names_a_store_of_which_not_every_part_was_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "stores.json"
    run(path, SMALL, ["operations", "waiting"], ["memory", "sqlite"], None)
    record = run(path, SMALL, ["operations"], ["sqlite"], None)
    waiting = render(record).partition("| waiting for 4,000 |")[2]
    cells = {line.split(" | ")[0]: line.split(" | ")[-1] for line in waiting.splitlines()}
    assert cells["| memory"] == "– |"
    assert cells["| SQLite"] != "– |"


def test_growth_is_the_slope_of_the_second_half() -> None:
    assert slope([0, 10, 20], [1.0, 2.0, 3.0]) == pytest.approx(0.1)
    assert slope([0, 10, 20], [5.0, 5.0, 5.0]) == 0
    steep_at_first = Memory([0, 10, 20, 30, 40, 50], [1.0, 9.0, 20.0, 30.0, 30.0, 30.0])
    assert steep_at_first.growth() == 0
    rising = Memory([0, 1, 2, 3], [0.0, 0.0, 1.0, 2.0])
    assert rising.growth() == 2**20


def test_cpu_and_memory_are_the_processes_own() -> None:
    before = cpu_seconds(os.getpid())
    assert before > 0
    while cpu_seconds(os.getpid()) == before:
        sum(range(10_000))
    assert rss_bytes(os.getpid()) > 2**20


def test_a_spread_is_the_median_with_its_range() -> None:
    assert spread([3.0, 1.0, 2.0], 1) == "2.0 (1.0–3.0)"
    assert spread([1234.5], 0) == "1,234"


def test_the_published_section_is_what_the_record_says(tmp_path: Path) -> None:
    record = Record.read(ROOT / PATH)
    page = (ROOT / "benchmarks/results/README.md").read_text()
    assert insert(page, Stores(), render(record)) == page
    assert f"    {Stores.command}\n" in page
    assert PEER in page
    assert set(SITES) == set(record.sizes)
    assert max(record.sizes["sqlite"]) == max(record.sizes["postgres"]) == 1_000_000
    assert record.gateway["sqlite"].calls[-1] >= 50_000
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "benchmarks/results/results-stores.png").is_file()
