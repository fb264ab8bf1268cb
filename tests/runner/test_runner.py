"""The laws of the runner, on a real store with real coroutines and threads."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from lightning_core.errors import ConfigError, StoreError
from lightning_core.experience.returns import FailurePolicy
from lightning_core.records.types import Attempt, Call, Rollout, Status, Task, ToolEvent
from lightning_core.runner.runner import LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, Runner
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.tracing.scope import Scope, current_scope, report
from lightning_core.tracing.tools import report_tool
from tests.build import make_rollouts as rollouts


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    sqlite = f"sqlite:///{tmp_path / 'runs.db'}"
    async with SqliteStore(sqlite) if request.param == "sqlite" else MemoryStore() as opened:
        yield opened


def scope_for(attempt: Attempt) -> Scope:
    return Scope(attempt.rollout.id, attempt.number, "http://127.0.0.1:1", token=f"key-{attempt.rollout.id}")


@asynccontextmanager
async def serving(solve: Callable[[Task], Any], store: Store, **options: Any) -> AsyncIterator[Runner]:
    """A runner at work inside the block; stopped, and waited for, at its end."""
    runner = Runner(solve, store, run_id="run", scope_for=scope_for, **options)
    stop = asyncio.Event()
    task = asyncio.create_task(runner.serve(stop))
    try:
        yield runner
    finally:
        stop.set()
        await task


async def run_all(
    solve: Callable[[Task], Any], store: Store, asked: Sequence[Rollout], **options: Any
) -> list[Rollout]:
    await store.enqueue(asked)
    async with serving(solve, store, **options):
        return await store.wait_finished([one.id for one in asked], timeout=20)


async def until_running(store: Store, count: int) -> None:
    while len(await store.find_rollouts("run", status=Status.RUNNING)) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


# running --------------------------------------------------------------------------------------
async def test_hundreds_of_async_rollouts_run_at_once(store: Store) -> None:
    running = most = 0

    async def solve(task: Task) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3)
        running -= 1
        return float(str(task.input["i"]))

    finished = await run_all(solve, store, rollouts(300), concurrency=300)
    assert [one.reward for one in finished] == [float(i) for i in range(300)]
    assert most == 300


async def test_no_more_than_the_concurrency_run_at_once(store: Store) -> None:
    running = most = 0

    async def solve(task: Task) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return 1.0

    await run_all(solve, store, rollouts(50), concurrency=7)
    assert most == 7


async def test_a_free_slot_is_filled_while_the_others_still_run(store: Store) -> None:
    gate = asyncio.Event()

    async def solve(task: Task) -> float:
        if task.input["i"] == 0:
            await gate.wait()
        return 1.0

    await store.enqueue(rollouts(30))
    async with serving(solve, store, concurrency=2):
        assert len(await store.wait_finished([f"r{i}" for i in range(1, 30)], timeout=60)) == 29
        gate.set()
        assert len(await store.wait_finished(["r0"], timeout=60)) == 1


async def test_an_idle_runner_begins_soon_after_an_enqueue(store: Store) -> None:
    async with serving(lambda task: 1.0, store):
        await asyncio.sleep(0.3)
        await store.enqueue(rollouts(1))
        assert len(await store.wait_finished(["r0"], timeout=20)) == 1


async def test_sync_functions_run_beside_each_other_in_threads(store: Store) -> None:
    together = threading.Barrier(20)

    def solve(task: Task) -> float:
        together.wait(timeout=60)
        return 1.0

    finished = await run_all(solve, store, rollouts(20), concurrency=20)
    assert [one.status for one in finished] == [Status.SUCCEEDED] * 20


async def test_a_function_that_hides_a_coroutine_is_awaited(store: Store) -> None:
    async def inner(task: Task, value: float) -> float:
        await asyncio.sleep(0)
        return value

    class Solver:
        async def __call__(self, task: Task) -> float:
            return await inner(task, 0.5)

    (first,) = await run_all(lambda task: inner(task, 0.25), store, rollouts(1))
    (_, second) = await run_all(Solver(), store, rollouts(2))
    assert (first.reward, second.reward) == (0.25, 0.5)


async def test_only_rollouts_of_its_own_run_are_taken(store: Store) -> None:
    foreign = rollouts(1)[0].model_copy(update={"id": "foreign", "run_id": "other"})
    await store.enqueue([foreign])
    await run_all(lambda task: 1.0, store, rollouts(1))
    assert [one.status for one in await store.find_rollouts("other")] == [Status.QUEUED]


# the scope ------------------------------------------------------------------------------------
def seen_scope(task: Task) -> float:
    scope = current_scope()
    assert scope is not None
    assert (scope.rollout_id, scope.token) == (f"r{task.input['i']}", f"key-r{task.input['i']}")
    return 1.0


async def test_sync_functions_see_their_own_scope(store: Store) -> None:
    finished = await run_all(seen_scope, store, rollouts(40), concurrency=16)
    assert {one.error for one in finished} == {None}


async def test_async_functions_see_their_own_scope_across_every_await(store: Store) -> None:
    async def solve(task: Task) -> float:
        for _ in range(5):
            await asyncio.sleep(0.001)
            seen_scope(task)
        await asyncio.gather(asyncio.to_thread(seen_scope, task), asyncio.create_task(inner(task)))
        return 1.0

    async def inner(task: Task) -> float:
        return seen_scope(task)

    finished = await run_all(solve, store, rollouts(100), concurrency=50)
    assert {one.error for one in finished} == {None}


async def test_no_scope_is_left_in_the_caller_or_after_the_end(store: Store) -> None:
    late: SimpleQueue[Scope | None] = SimpleQueue()
    ended = threading.Event()

    def solve(task: Task) -> float:
        ended.wait(timeout=60)
        late.put(current_scope())
        return 1.0

    await run_all(solve, store, rollouts(1), timeout=0.05)
    assert current_scope() is None
    ended.set()
    assert await asyncio.to_thread(late.get, timeout=60) is None


# failures are data ----------------------------------------------------------------------------
class OddError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raising(error: BaseException) -> tuple[Callable[[Task], Any], Callable[[Task], Any]]:
    def sync(task: Task) -> float:
        raise error

    async def not_sync(task: Task) -> float:
        raise error

    return sync, not_sync


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("tool"), "KeyError: 'tool'"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("by the app"), "CancelledError: by the app"),
        (StopIteration(), "StopIteration"),
        (BaseExceptionGroup("two", [ValueError("one"), SystemExit(2)]), "  - SystemExit: 2"),
        (OddError(), "OddError: (its message can't be shown)"),
        (ValueError("half a parrot \ud83e"), "ValueError: half a parrot ?"),
        (ValueError("x" * 100_000), "ValueError: xxxxx"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_whatever_the_app_raises_is_data(error: BaseException, text: str, kind: str) -> None:
    async with MemoryStore() as store:
        solve = raising(error)[kind == "async"]
        failed, *others = await run_all(
            lambda task: solve(task) if task.input["i"] == 0 else 1.0, store, rollouts(5)
        )
        assert failed.status is Status.FAILED
        assert text in str(failed.error)
        assert len(str(failed.error)) <= 2000
        assert [one.reward for one in others] == [1.0] * 4


async def test_an_error_names_the_line_of_the_app(store: Store) -> None:
    (failed,) = await run_all(raising(ValueError("broke"))[1], store, rollouts(1))
    first, *frames = str(failed.error).splitlines()
    assert first == "ValueError: broke"
    assert "test_runner.py" in frames[-1]
    assert frames[-1].endswith("in not_sync")
    assert not any("calling.py" in frame for frame in frames)


async def test_an_error_tells_what_caused_it(store: Store) -> None:
    def solve(task: Task) -> float:
        try:
            try:
                raise RuntimeError("Event loop is closed")
            except RuntimeError:
                raise ConnectionError("Connection error.")  # noqa: B904
        except ConnectionError as error:
            raise ValueError("no reply") from error

    (failed,) = await run_all(solve, store, rollouts(1))
    assert str(failed.error).splitlines()[:3] == [
        "ValueError: no reply",
        "  caused by ConnectionError: Connection error.",
        "  caused by RuntimeError: Event loop is closed",
    ]


async def test_an_error_is_tried_again_and_then_dropped(store: Store) -> None:
    tries: list[int] = []

    def solve(task: Task) -> float:
        scope = current_scope()
        tries.append(scope.attempt if scope else 0)
        raise ValueError("broke")

    policy = FailurePolicy(retries=2)
    asked = rollouts(1, max_attempts=policy.max_attempts)
    (failed,) = await run_all(solve, store, asked, on_failure=policy)
    assert tries == [1, 2, 3]
    assert (failed.status, failed.reward, failed.attempts) == (Status.FAILED, None, 3)


async def test_a_second_try_may_succeed(store: Store) -> None:
    def solve(task: Task) -> float:
        scope = current_scope()
        if scope is None or scope.attempt == 1:
            raise ValueError("broke")
        return 1.0

    (done,) = await run_all(solve, store, rollouts(1, max_attempts=2))
    assert (done.status, done.reward, done.error) == (Status.SUCCEEDED, 1.0, None)


async def test_a_penalty_is_given_only_when_the_tries_are_used_up(store: Store) -> None:
    tries = 0

    async def solve(task: Task) -> float:
        nonlocal tries
        tries += 1
        raise ValueError("broke")

    policy = FailurePolicy(retries=1, then=-0.5)
    asked = rollouts(1, max_attempts=policy.max_attempts)
    (failed,) = await run_all(solve, store, asked, on_failure=policy)
    assert (tries, failed.status, failed.reward) == (2, Status.FAILED, -0.5)
    assert "broke" in str(failed.error)


def test_a_failure_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="retries=-1"):
        FailurePolicy(retries=-1)
    with pytest.raises(ConfigError, match="'forget'"):
        FailurePolicy(then="forget")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="then=nan"):
        FailurePolicy(then=float("nan"))
    with pytest.raises(ConfigError, match=r"then=-1e\+200 .* from -1e9 to 1e9"):
        FailurePolicy(then=-1e200)


@pytest.mark.parametrize("option", [{"concurrency": 0}, {"timeout": 0.0}, {"lease_seconds": -1.0}])
def test_a_runner_option_that_makes_no_sense_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        Runner(lambda task: 1.0, MemoryStore(), run_id="run", scope_for=scope_for, **option)


# time-outs ------------------------------------------------------------------------------------
async def test_a_late_async_function_is_cancelled_and_its_slot_freed(store: Store) -> None:
    cancelled = []

    async def solve(task: Task) -> float:
        if task.input["i"] == 0:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(task.input["i"])
                raise
        return 1.0

    late, after = await run_all(solve, store, rollouts(2), concurrency=1, timeout=0.1)
    assert cancelled == [0]
    assert late.error == f"TimeoutError: task {late.task.id!r} took longer than 0.1 s and was cancelled"
    assert after.reward == 1.0


async def test_a_late_sync_function_is_left_behind_and_its_slot_freed(store: Store) -> None:
    release = threading.Event()

    def solve(task: Task) -> float:
        if task.input["i"] == 0:
            release.wait(timeout=60)
        return 1.0

    late, after = await run_all(solve, store, rollouts(2), concurrency=1, timeout=1.0)
    release.set()
    assert str(late.error).startswith("TimeoutError: ")
    assert "could not be stopped, so it was left running" in str(late.error)
    assert after.reward == 1.0


async def test_a_function_that_ignores_its_cancellation_loses_its_slot(store: Store) -> None:
    gate = asyncio.Event()

    async def solve(task: Task) -> float:
        while task.input["i"] == 0 and not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    late, after = await run_all(solve, store, rollouts(2), concurrency=1, timeout=0.1)
    gate.set()
    assert "could not be stopped" in str(late.error)
    assert after.reward == 1.0


# stopping and dying ---------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_stop_gives_unfinished_rollouts_back(store: Store, kind: str) -> None:
    gate = threading.Event()

    async def slow(task: Task) -> float:
        await asyncio.sleep(60)
        return 1.0

    def slow_sync(task: Task) -> float:
        gate.wait(timeout=60)
        return 1.0

    await store.enqueue(rollouts(5))
    async with serving(slow if kind == "async" else slow_sync, store, concurrency=3):
        await until_running(store, 3)
    assert [one.status for one in await store.find_rollouts("run")] == [Status.QUEUED] * 5
    gate.set()
    finished = await run_all(lambda task: 1.0, store, rollouts(5))
    assert [one.reward for one in finished] == [1.0] * 5


async def test_a_cancelled_runner_gives_unfinished_rollouts_back(store: Store) -> None:
    async def slow(task: Task) -> float:
        await asyncio.sleep(60)
        return 1.0

    await store.enqueue(rollouts(5))
    runner = Runner(slow, store, run_id="run", scope_for=scope_for)
    serve = asyncio.create_task(runner.serve(asyncio.Event()))
    await until_running(store, 5)
    serve.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serve
    assert [one.status for one in await store.find_rollouts("run")] == [Status.QUEUED] * 5


async def test_the_rollouts_of_a_dead_worker_are_taken_over(store: Store) -> None:
    await store.enqueue(rollouts(3, max_attempts=2))
    dead = await store.lease("dead", 2, 0.2)
    async with serving(lambda task: 1.0, store):
        finished = await store.wait_finished(["r0", "r1", "r2"], timeout=60)
    assert [(one.reward, one.attempts) for one in finished] == [(1.0, 2), (1.0, 2), (1.0, 1)]
    assert await store.heartbeat(dead, 60) == []


async def test_a_rollout_longer_than_its_lease_stays_with_its_worker(store: Store) -> None:
    async def solve(task: Task) -> float:
        await asyncio.sleep(1.0)
        return 1.0

    await store.enqueue(rollouts(3, max_attempts=2))
    async with serving(solve, store, lease_seconds=0.6), serving(solve, store, lease_seconds=0.6):
        finished = await store.wait_finished(["r0", "r1", "r2"], timeout=60)
    assert [one.attempts for one in finished] == [1, 1, 1]


async def test_a_runner_that_was_held_up_keeps_what_nobody_took(store: Store) -> None:
    async def solve(task: Task) -> float:
        if task.input["i"] == 1:
            time.sleep(0.5)  # noqa: ASYNC251  # the app blocks the loop, so no heartbeat can be sent
        await asyncio.sleep(0.3)
        return 1.0

    finished = await run_all(solve, store, rollouts(3), concurrency=4, lease_seconds=0.3)
    assert [(one.status, one.attempts) for one in finished] == [(Status.SUCCEEDED, 1)] * 3


async def test_a_cancelled_rollout_is_stopped_and_forgotten(store: Store) -> None:
    stopped = asyncio.Event()

    async def solve(task: Task) -> float:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return 1.0

    await store.enqueue(rollouts(1))
    async with serving(solve, store, lease_seconds=0.9):
        await until_running(store, 1)
        await store.cancel(["r0"])
        async with asyncio.timeout(5):
            await stopped.wait()
    assert [one.status for one in await store.find_rollouts("run")] == [Status.CANCELLED]


class Shaky(MemoryStore):
    """Fails the first heartbeat."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.done: list[str] = []
        self.twice = asyncio.Event()

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        self.done.append("wait")
        return await super().wait_cancelled(worker, timeout)

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        self.done.append("beat")
        if self.done.count("beat") == 1:
            raise self.error
        self.twice.set()
        return await super().heartbeat(attempts, seconds)


async def hanging(task: Task) -> float:
    await asyncio.sleep(60)
    return 1.0


def test_a_lease_outlasts_a_store_that_was_away_for_as_long_as_it_is_waited_for() -> None:
    runner = Runner(seen_scope, MemoryStore(), run_id="run", scope_for=scope_for)
    assert runner.lease_seconds == LEASE_SECONDS > RENEW_SECONDS + 2 * (60.0 + RETRY_SECONDS)


async def test_after_a_heartbeat_that_failed_comes_the_next_one_and_nothing_between() -> None:
    async with Shaky(StoreError("away")) as store:
        await store.enqueue(rollouts(1))
        async with serving(hanging, store, lease_seconds=0.3):
            async with asyncio.timeout(10):
                await store.twice.wait()
    assert store.done[:3] == ["wait", "beat", "beat"]


async def test_leases_that_can_t_be_kept_for_any_other_reason_end_the_runner() -> None:
    async with Shaky(ValueError("a bug of the store")) as store:
        await store.enqueue(rollouts(1))
        runner = Runner(hanging, store, run_id="run", scope_for=scope_for, lease_seconds=0.3)
        async with asyncio.timeout(10):
            with pytest.raises(ValueError, match="a bug of the store"):
                await runner.serve(asyncio.Event())
        assert [one.status for one in await store.find_rollouts("run")] == [Status.QUEUED]


async def test_a_store_that_fails_ends_the_runner_with_its_error(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path / 'runs.db'}")
    async with store:
        await store.enqueue(rollouts(1))
        runner = Runner(seen_scope, store, run_id="run", scope_for=scope_for)
        serve = asyncio.create_task(runner.serve(asyncio.Event()))
        await store.wait_finished(["r0"], timeout=60)
    with pytest.raises(StoreError, match="not open"):
        await serve


class SlowGateways:
    """Finds a gateway at once, and later none."""

    def __init__(self) -> None:
        self.looks = 0
        self.looking = asyncio.Event()

    async def ready(self) -> None:
        self.looks += 1
        if self.looks > 1:
            self.looking.set()
            await asyncio.Event().wait()

    async def lost(self, scope: Scope) -> bool:
        return False


async def test_a_look_for_gateways_goes_on_when_a_slot_comes_free_and_ends_with_the_runner() -> None:
    gateways, go = SlowGateways(), [asyncio.Event(), asyncio.Event()]

    async def solve(task: Task) -> float:
        await go[int(str(task.input["i"]))].wait()
        return 1.0

    async with MemoryStore() as store:
        await store.enqueue(rollouts(2))
        async with serving(solve, store, concurrency=2, gateways=gateways), asyncio.timeout(10):
            go[0].set()
            await gateways.looking.wait()
            go[1].set()
            await store.wait_finished(["r1"])
            await asyncio.sleep(0.05)  # in which another look would begin
    assert gateways.looks == 2
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


# telling --------------------------------------------------------------------------------------
async def test_each_rollout_that_ended_for_good_is_told_once(store: Store) -> None:
    told: list[Rollout] = []

    def solve(task: Task) -> float:
        if task.input["i"] == 1:
            raise ValueError("broke")
        return 1.0

    finished = await run_all(solve, store, rollouts(3, max_attempts=2), on_finished=told.append)
    assert sorted(told, key=lambda one: one.id) == finished


async def test_what_was_seen_in_an_attempt_is_stored_before_its_end_is_known(store: Store) -> None:
    threads: list[threading.Thread] = []
    ended = threading.Event()

    async def solve(task: Task) -> float:
        report_tool("look", agent="a", framework="x", arguments={"at": task.input["i"]}, tool_call_id="c1")
        scope = current_scope()
        assert scope is not None
        late = copy_context()

        def linger() -> None:
            ended.wait(60)
            late.run(report_tool, "late", agent="a", framework="x")

        threads.append(threading.Thread(target=linger))
        threads[-1].start()
        times = {"started_at": 1.0, "ended_at": 2.0}
        report(
            Call(
                id="h",
                rollout_id=scope.rollout_id,
                attempt=1,
                agent="b",
                trained=False,
                endpoint="u",
                **times,
            )
        )
        if task.input["i"] == 1:
            raise ValueError("after the tool")
        return 1.0

    await run_all(solve, store, rollouts(3))
    ended.set()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    names = ["r0", "r1", "r2"]
    events = await store.get_events(names)
    assert [[event.name for event in events[name]] for name in names] == [["look"]] * 3
    assert [json.loads(events[name][0].arguments)["at"] for name in names] == [0, 1, 2]
    assert {name: [call.id for call in of] for name, of in (await store.get_calls(names)).items()} == {
        name: ["h"] for name in names
    }


def test_a_tool_run_outside_of_any_rollout_is_nobodys() -> None:
    assert current_scope() is None
    report_tool("look", agent="a", framework="x")


async def test_a_tool_run_is_kept_as_text_with_its_error_and_times(store: Store) -> None:
    async def solve(task: Task) -> float:
        begun = time.time() - 5
        report_tool(
            "f",
            agent="a",
            framework="x",
            arguments='{"a": 1',
            error_type="invalid_arguments",
            error="not JSON",
            started_at=begun,
        )
        report_tool("g", agent="a", framework="x", arguments={"o": object}, result=["é", 1])
        report_tool("h", agent="a", framework="x", error=ZeroDivisionError("by zero"))
        return 0.0

    await run_all(solve, store, rollouts(1))
    first, second, third = sorted((await store.get_events(["r0"]))["r0"], key=lambda event: event.name)
    assert isinstance(first, ToolEvent)
    assert (first.arguments, first.error, first.error_type) == ('{"a": 1', "not JSON", "invalid_arguments")
    assert 5 <= first.ended_at - first.started_at < 60
    assert isinstance(second, ToolEvent)
    assert second.result == '["é", 1]'
    assert "object" in second.arguments
    assert (second.error, second.error_type) == (None, None)
    assert isinstance(third, ToolEvent)
    assert (third.error, third.error_type, third.result) == ("ZeroDivisionError: by zero", "raised", None)
