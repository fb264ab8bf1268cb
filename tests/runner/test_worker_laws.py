"""Laws wherever the function runs: in the runner's process, in worker processes, on Ray."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lightning_core.errors import WorkerError
from lightning_core.records.types import Call, Rollout, Status
from lightning_core.runner.ray_workers import RayWorkers
from lightning_core.testing.server import serving
from tests.runner import playing
from tests.runner.clusters import cluster
from tests.runner.served import AGENTS, BETTER, ServedRunner, begun, lives, rollouts, serve_runner, written

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKERS = 2
REMOTE = ("processes", "ray")
"""Where the function runs in another process, which is ended whatever it does."""


@pytest.fixture(scope="module", params=["here", *REMOTE])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def workers(name: str) -> Iterator[int | RayWorkers | None]:
    """The runner's setting."""
    settings = {"here": None, "processes": WORKERS, "ray": RayWorkers(WORKERS, options={"num_cpus": 0})}
    with cluster() if name == "ray" else nullcontext():
        yield settings[name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(workers: int | RayWorkers | None) -> AsyncIterator[ServedRunner]:
    """A runner without a time-out, and with heartbeats too late for any test."""
    async with serve_runner(
        workers, playing.play, concurrency=WORKERS, timeout=None, lease_seconds=600
    ) as served:
        yield served


@pytest.fixture(scope="module")
def hosted() -> Iterator[str]:
    """The base URL of an endpoint of the app's own."""
    with serving() as server:
        yield f"{server.url}/v1"


# what comes back ------------------------------------------------------------------------------
async def test_the_reward_comes_back(at: ServedRunner) -> None:
    finished = await at.play(rollouts("reward", 12))
    assert [one.reward for one in finished] == [float(i) for i in range(12)]


async def test_the_error_comes_back_with_the_line_of_the_app(at: ServedRunner) -> None:
    (failed,) = await at.play(rollouts("broken", 1))
    first, *frames = str(failed.error).splitlines()
    assert (failed.status, first) == (Status.FAILED, "ValueError: broke on 0")
    assert "playing.py" in frames[-1]
    assert frames[-1].endswith("in broken")


async def test_no_reward_at_all_is_an_error_that_says_so(at: ServedRunner) -> None:
    (failed,) = await at.play(rollouts("nothing", 1))
    assert "play returned None: return one float" in str(failed.error)


async def test_an_exit_is_the_end_of_its_rollout_alone(at: ServedRunner) -> None:
    finished = await at.play(rollouts("leaving", 4))
    assert [str(one.error).splitlines()[0] for one in finished] == ["SystemExit: 3"] * 4


async def test_what_was_noticed_comes_back(at: ServedRunner, hosted: str) -> None:
    finished = await at.play(
        [*rollouts("noticing", 2, hosted=hosted), *rollouts("noticing", 2, hosted=hosted, fails=True)]
    )
    ids = [one.id for one in finished]
    calls, events = await at.store.get_calls(ids), await at.store.get_events(ids)
    rewards = await at.store.get_rewards(ids)
    assert [one.reward for one in finished] == [1.0, 1.0, None, None]
    for one in finished:
        (call,), told = calls[one.id], f"rollout {one.task.input['i']}"
        assert (call.agent, call.trained, call.endpoint) == ("checker", False, hosted)
        assert (call.status, said_in(call)) == ("completed", told)
        (event,) = events[one.id]
        assert event.kind == "tool"
        assert event.arguments == f'{{"i": {one.task.input["i"]}}}'
        given = [(r.value, r.agent, r.call_id, r.reason) for r in rewards[one.id]]
        assert given[:2] == [(0.25, "writer", None, told), (-0.5, None, call.response_id, None)]


def said_in(call: Call) -> Any:
    messages: Any = call.request["messages"]
    return messages[-1]["content"]


@pytest.mark.parametrize("play", ["huge_value", "huge_error"])
async def test_what_is_far_too_large_is_an_error_of_its_rollout(at: ServedRunner, play: str) -> None:
    (failed,) = await at.play(rollouts(play, 1))
    assert failed.status is Status.FAILED
    assert "xxx" in str(failed.error)
    assert len(str(failed.error)) <= 2000


async def test_a_large_event_comes_back_whole(at: ServedRunner) -> None:
    (done,) = await at.play(rollouts("huge_notice", 1))
    (event,) = (await at.store.get_events([done.id]))[done.id]
    assert done.reward == 1.0
    assert event.kind == "tool"
    assert len(str(event.result)) == 5_000_000


async def test_every_call_is_recorded_under_its_own_rollout_and_agent(at: ServedRunner) -> None:
    finished = await at.play(rollouts("asking", 10))
    calls = await at.store.get_calls([one.id for one in finished])
    assert {one.error for one in finished} == {None}
    for place, one in enumerate(finished):
        expected = Counter(f"{place} {name} {turn}" for name in AGENTS for turn in range(3))
        assert Counter(said_in(call) for call in calls[one.id]) == expected
        assert all(str(said_in(call)).split()[1] == call.agent for call in calls[one.id])


async def test_an_agent_is_told_the_prompt_that_its_rollout_is_pinned_to(
    at: ServedRunner, hosted: str
) -> None:
    (done,) = await at.play(rollouts("prompted", 1, hosted=hosted))
    (call,) = (await at.store.get_calls([done.id]))[done.id]
    messages: Any = call.request["messages"]
    assert [message["content"] for message in messages] == [BETTER, BETTER]


async def test_a_function_runs_where_the_runner_is_told(at: ServedRunner, name: str) -> None:
    finished = await at.play(rollouts("process_id", 4))
    assert ({one.reward for one in finished} == {float(os.getpid())}) == (name == "here")


async def test_a_rollout_whose_process_died_is_tried_again_elsewhere(at: ServedRunner, name: str) -> None:
    if name not in REMOTE:
        pytest.skip("here it would be the end of the tests")
    failed, done = await at.play(
        [*rollouts("dying", 1, by="exit"), *rollouts("dying", 1, by="exit", attempts=2)]
    )
    assert f"of task {failed.task.id!r}" in str(failed.error)
    assert (failed.status, done.reward, done.attempts) == (Status.FAILED, 1.0, 2)


async def test_a_function_that_can_t_be_loaded_elsewhere_is_refused_at_the_start(
    workers: int | RayWorkers | None, name: str
) -> None:
    if name not in REMOTE:
        pytest.skip("here it is loaded")
    with pytest.raises(WorkerError, match=r"can't load the function: [\s\S]*ZeroDivisionError"):
        async with serve_runner(workers, playing.Unloadable()) as at:
            await at.serving


# what hangs -----------------------------------------------------------------------------------
async def test_a_cancelled_rollout_ends_within_a_moment_and_its_slot_serves_the_next(
    at: ServedRunner, name: str, tmp_path: Path
) -> None:
    plays = ["sleeper", "deaf" if name in REMOTE else "sleeper"]
    hanging, began = hung(plays, tmp_path)
    await at.store.enqueue(hanging)
    pids = [await begun(path) for path in began]
    assert await at.store.cancel([one.id for one in hanging]) == WORKERS
    after = await at.play(rollouts("reward", 2 * WORKERS))
    assert [one.reward for one in after] == [float(i) for i in range(2 * WORKERS)]
    ended = await at.store.wait_finished([one.id for one in hanging])
    assert {one.status for one in ended} == {Status.CANCELLED}
    async with asyncio.timeout(60):  # the other slots may have served all that came after
        while name in REMOTE and any(lives(pid) for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_hangs_is_ended_at_its_time_out_or_at_a_stop_and_its_slot_serves_the_next(
    workers: int | RayWorkers | None, name: str, tmp_path: Path
) -> None:
    """In this process a function that does not give way can't be ended: there only the sleeper is played."""
    plays, solve, timeout = ["sleeper", "sleeper"], playing.play, 1.5
    if name in REMOTE:  # where a grandchild must have started by then
        plays, solve, timeout = ["spinner", "with_grandchild"], playing.play_in_thread, 8.0
    hanging, began = hung(plays, tmp_path)
    async with serve_runner(workers, solve, concurrency=WORKERS, timeout=timeout) as at:
        finished = await at.play([*hanging, *rollouts("reward", 2 * WORKERS)])
        assert at.runner.concurrency == WORKERS
        noticed = await at.store.get_events([one.id for one in hanging])
        stopped, began_last = hung(plays[:1], tmp_path / "last")
        at.runner.timeout = None
        await at.store.enqueue(stopped)
        last = await begun(began_last[0])
        at.stop.set()
        await at.serving
        (given_back,) = await at.store.find_rollouts("run", status=Status.QUEUED)
    late, after = finished[: len(plays)], finished[len(plays) :]
    for play, one in zip(plays, late, strict=True):
        assert (
            one.error
            == f"TimeoutError: task {one.task.id!r} took longer than {timeout:g} s and was cancelled"
        )
        assert len(noticed[one.id]) == (play in ("sleeper", "spinner"))
    assert [one.reward for one in after] == [float(i) for i in range(2 * WORKERS)]
    assert given_back.id == stopped[0].id
    assert name not in REMOTE or not any(lives(pid) for pid in [last, *map(written, began)])


def hung(plays: list[str], folder: Path) -> tuple[list[Rollout], list[Path]]:
    """Rollouts that hang, and the files in which they say in which process."""
    folder.mkdir(exist_ok=True)
    began = [folder / str(place) for place in range(len(plays))]
    return [
        one for play, path in zip(plays, began, strict=True) for one in rollouts(play, 1, began=str(path))
    ], began
