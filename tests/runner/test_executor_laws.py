"""What holds of every executor, wherever it runs the function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.runner.executor import Executor
from lightning_core.runner.in_process import InProcess
from lightning_core.runner.processes import Processes
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.types import Call, Status, Task
from tests.runner import playing
from tests.runner.stage import AGENTS, begun, lives, rollouts, stage

WORKERS = 2
ELSEWHERE = ("processes",)
"""Executors that run the function in another process, and so can end whatever it does."""


@pytest.fixture(scope="module", params=["asyncio", *ELSEWHERE])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def executor(name: str) -> Executor:
    return {"asyncio": InProcess(), "processes": Processes(workers=WORKERS, grace=0.2)}[name]


@pytest.fixture
def elsewhere(name: str, executor: Executor) -> Executor:
    if name not in ELSEWHERE:
        pytest.skip("in this process a function that does not give way can't be ended")
    return executor


@pytest.fixture
def hosted() -> Iterator[GatewayDouble]:
    """An endpoint of the app's own."""
    with serving() as server:
        yield server


# what comes back ------------------------------------------------------------------------------
@pytest.mark.parametrize("solve", [playing.reward, playing.async_reward])
async def test_the_reward_comes_back(executor: Executor, solve: Callable[[Task], Any]) -> None:
    async with stage(executor, solve) as at:
        finished = await at.play(rollouts(12))
    assert [one.reward for one in finished] == [float(i) for i in range(12)]


async def test_the_error_comes_back_with_the_line_of_the_app(executor: Executor) -> None:
    async with stage(executor, playing.broken) as at:
        (failed,) = await at.play(rollouts(1))
    first, *frames = str(failed.error).splitlines()
    assert (failed.status, first) == (Status.FAILED, "ValueError: broke on 0")
    assert "playing.py" in frames[-1]
    assert frames[-1].endswith("in broken")


async def test_no_reward_at_all_is_an_error_that_says_so(executor: Executor) -> None:
    async with stage(executor, playing.nothing) as at:
        (failed,) = await at.play(rollouts(1))
    assert "nothing returned None. Return one float" in str(failed.error)


@pytest.mark.parametrize("solve", [playing.leaving, playing.async_leaving])
async def test_an_exit_is_the_end_of_its_rollout_alone(
    executor: Executor, solve: Callable[[Task], Any]
) -> None:
    async with stage(executor, solve) as at:
        finished = await at.play(rollouts(4))
    assert [str(one.error).splitlines()[0] for one in finished] == ["SystemExit: 3"] * 4


async def test_what_was_noticed_comes_back(executor: Executor, hosted: GatewayDouble) -> None:
    base = f"{hosted.url}/v1"
    async with stage(executor, playing.noticing) as at:
        good, bad = rollouts(2, hosted=base), rollouts(2, first=2, hosted=base, fails=True)
        finished = await at.play([*good, *bad])
        ids = [one.id for one in finished]
        calls, events = await at.store.get_calls(ids), await at.store.get_events(ids)
        rewards = await at.store.get_rewards(ids)
    assert [one.reward for one in finished] == [1.0, 1.0, None, None]
    for place, one in enumerate(ids):
        (call,) = calls[one]
        assert (call.agent, call.trained, call.endpoint) == ("checker", False, base)
        assert call.status == "completed"
        assert said_in(call) == f"rollout {place}"
        assert [event.arguments for event in events[one] if event.kind == "tool"] == [f'{{"i": {place}}}']
        given = [(r.value, r.agent, r.call_id, r.reason) for r in rewards[one] if r.source == "app"]
        assert given[:2] == [(0.25, "writer", None, f"rollout {place}"), (-0.5, None, call.response_id, None)]


def said_in(call: Call) -> Any:
    messages: Any = call.request["messages"]
    return messages[-1]["content"]


@pytest.mark.parametrize("solve", [playing.huge_value, playing.huge_error])
async def test_what_is_far_too_large_is_an_error_of_its_rollout(
    executor: Executor, solve: Callable[[Task], Any]
) -> None:
    async with stage(executor, solve) as at:
        (failed,) = await at.play(rollouts(1))
    assert failed.status is Status.FAILED
    assert "xxx" in str(failed.error)
    assert len(str(failed.error)) <= 2000


async def test_a_large_event_comes_back_whole(executor: Executor) -> None:
    async with stage(executor, playing.huge_notice) as at:
        (done,) = await at.play(rollouts(1))
        (event,) = (await at.store.get_events(["r0"]))["r0"]
    assert done.reward == 1.0
    assert event.kind == "tool"
    assert len(str(event.result)) == 5_000_000


async def test_every_call_is_recorded_under_its_own_rollout_and_agent(executor: Executor) -> None:
    async with stage(executor, playing.asking, concurrency=8) as at:
        finished = await at.play(rollouts(16))
        calls = await at.store.get_calls([one.id for one in finished])
    assert {one.error for one in finished} == {None}
    for place, one in enumerate(finished):
        expected = Counter(f"{place} {name} {turn}" for name in AGENTS for turn in range(3))
        assert Counter(said_in(call) for call in calls[one.id]) == expected
        assert all(str(said_in(call)).split()[1] == call.agent for call in calls[one.id])


# what hangs -----------------------------------------------------------------------------------
async def test_a_sleeper_is_ended_at_its_time_out_and_its_slot_serves_the_next(
    executor: Executor, tmp_path: Path
) -> None:
    await check_time_out(executor, playing.sleeper, tmp_path)


@pytest.mark.parametrize("solve", [playing.spinner, playing.deaf, playing.with_grandchild])
async def test_an_endless_loop_is_ended_at_its_time_out_and_its_slot_serves_the_next(
    elsewhere: Executor, solve: Callable[[Task], Any], tmp_path: Path
) -> None:
    pids = await check_time_out(elsewhere, solve, tmp_path)
    assert not any(lives(pid) for pid in pids)


async def check_time_out(executor: Executor, solve: Callable[[Task], Any], folder: Path) -> list[int]:
    """Hang in every slot; the processes in which it hung."""
    async with stage(executor, solve, concurrency=WORKERS, timeout=1.5) as at:
        hanging = [
            *rollouts(1, hangs=True, began=str(folder / "one")),
            *rollouts(1, first=1, hangs=True, began=str(folder / "two")),
        ]
        late = await at.play(hanging)
        after = await at.play(rollouts(2 * WORKERS, first=2))
        assert at.runner.concurrency == WORKERS
        noticed = await at.store.get_events([one.id for one in late])
    for one in late:
        assert one.error == f"TimeoutError: task {one.task.id!r} took longer than 1.5 s and was cancelled"
        if solve in (playing.sleeper, playing.spinner):
            assert len(noticed[one.id]) == 1
    assert [one.reward for one in after] == [1.0] * 2 * WORKERS
    return [int((folder / name).read_text()) for name in ("one", "two")]


async def test_a_cancelled_rollout_ends_within_a_moment_and_its_slot_serves_the_next(
    executor: Executor, tmp_path: Path
) -> None:
    await check_cancelled(executor, playing.sleeper, tmp_path)


async def test_a_cancelled_endless_loop_ends_within_a_moment(elsewhere: Executor, tmp_path: Path) -> None:
    pid = await check_cancelled(elsewhere, playing.spinner, tmp_path)
    assert not lives(pid)


async def check_cancelled(executor: Executor, solve: Callable[[Task], Any], folder: Path) -> int:
    # The heartbeat of this lease is too late for the test: it is the cancellation itself that arrives.
    async with stage(executor, solve, concurrency=1, timeout=None, lease_seconds=600) as at:
        (hanging,) = rollouts(1, hangs=True, began=str(folder / "began"))
        await at.store.enqueue([hanging])
        pid = await begun(folder / "began")
        assert await at.store.cancel([hanging.id]) == 1
        after = await at.play(rollouts(2, first=1))
        (cancelled,) = await at.store.wait_finished([hanging.id])
    assert cancelled.status is Status.CANCELLED
    assert [one.reward for one in after] == [1.0, 1.0]
    return pid


async def test_a_stop_ends_what_runs_and_gives_it_back(executor: Executor, tmp_path: Path) -> None:
    async with stage(executor, playing.sleeper, concurrency=1) as at:
        await at.store.enqueue(rollouts(1, hangs=True, began=str(tmp_path / "began")))
        await begun(tmp_path / "began")
        store = at.store
        at.stop.set()
        await at.serving
        (given_back,) = await store.find_rollouts("run")
    assert given_back.status is Status.QUEUED
