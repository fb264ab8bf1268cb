"""The laws every store keeps, whatever it is made of."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
from pydantic import JsonValue

from lightning_core.errors import DataError, LeaseLostError, NotFoundError, RewardError
from lightning_core.records.types import (
    Alert,
    Attempt,
    Call,
    Choice,
    Credited,
    Member,
    Metrics,
    ResourceVersion,
    Reward,
    Rollout,
    Run,
    Sampling,
    Span,
    Status,
    Task,
    ToolEvent,
)
from lightning_core.stores.base import Store
from tests.build import make_call
from tests.stores.hearing import TRIES, cancel_until_heard

LONG = 60.0
GONE = -1.0
"""A lease of this many seconds has run out when it is given."""


def rollout(name: str, **fields: object) -> Rollout:
    given = {"run_id": "run", "group_id": "g", "step": 0, "task": Task(input={"q": name}), **fields}
    return Rollout.model_validate({"id": name, **given})


def call(name: str, attempt: Attempt, *, started: float = 1.0, **fields: object) -> Call:
    of = {"rollout_id": attempt.rollout.id, "attempt": attempt.number, "agent": "writer"}
    return make_call(name, at=started, **{**of, **fields})


async def lease_one(store: Store, worker: str = "w", seconds: float = LONG) -> Attempt:
    (attempt,) = await store.lease(worker, 1, seconds)
    return attempt


async def find(store: Store, name: str) -> Rollout:
    (found,) = [one for one in await store.find_rollouts("run") if one.id == name]
    return found


def names(rollouts: Sequence[Rollout | Attempt]) -> list[str]:
    return [one.rollout.id if isinstance(one, Attempt) else one.id for one in rollouts]


# the queue ------------------------------------------------------------------------------------
async def test_enqueue_twice_keeps_the_first(store: Store) -> None:
    assert await store.enqueue([rollout("a"), rollout("b")]) == 2
    attempt = await lease_one(store)
    await store.finish(attempt, reward=1.0)
    assert await store.enqueue([rollout("a", priority=5), rollout("c"), rollout("c")]) == 1
    assert (await find(store, "a")).status is Status.SUCCEEDED
    assert names(await store.find_rollouts("run")) == ["a", "b", "c"]
    assert await store.enqueue([]) == 0


async def test_an_idle_worker_is_told_of_work(store: Store) -> None:
    assert not await store.wait_queued(0.0)
    waiting = asyncio.create_task(store.wait_queued(LONG, run_id="run"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await store.enqueue([rollout("a")])
    async with asyncio.timeout(LONG / 2):
        assert await waiting
    assert await store.wait_queued(0.0), "what is queued already is told at once"
    assert not await store.wait_queued(0.0, run_id="another")
    attempt = await lease_one(store)
    assert not await store.wait_queued(0.0)
    waiting = asyncio.create_task(store.wait_queued(LONG))
    await asyncio.sleep(0.05)
    await store.release([attempt])
    async with asyncio.timeout(LONG / 2):
        assert await waiting, "what is given back is work again"


async def test_an_idle_worker_is_told_of_a_lease_that_ran_out(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    await lease_one(store, seconds=GONE)
    assert await store.wait_queued(0.0)


async def test_a_worker_is_told_of_a_cancellation(store: Store) -> None:
    await store.enqueue([rollout(f"r{number}") for number in range(1 + TRIES)])
    theirs = await lease_one(store, "theirs")
    mine = await store.lease("mine", TRIES, LONG)
    waiting = {name: asyncio.create_task(store.wait_cancelled(name, LONG)) for name in ("mine", "theirs")}
    cancelled = await cancel_until_heard(waiting["mine"], names(mine), lambda name: store.cancel([name]))
    assert await waiting["mine"]
    assert not waiting["theirs"].done()
    held = names(await store.heartbeat([*mine, theirs], LONG))
    assert {*held} == {theirs.rollout.id, *names(mine)} - {*cancelled}
    waiting["theirs"].cancel()
    assert not await store.wait_cancelled("theirs", 0.0)


async def test_what_is_enqueued_comes_back_whole(store: Store) -> None:
    asked = rollout(
        "a",
        task=Task(id="t", input={"q": "how many?", "n": [1, 2.5, None, True]}, split="validation"),
        split="validation",
        sampling=Sampling(temperature=0.0, top_p=0.5),
        step=7,
        priority=-3,
        max_attempts=4,
    )
    await store.enqueue([asked])
    assert await store.find_rollouts("run") == [asked]


async def test_higher_priority_is_leased_first_then_the_earlier(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b", priority=1), rollout("c"), rollout("d", priority=1)])
    assert names(await store.lease("w", 3, LONG)) == ["b", "d", "a"]
    assert names(await store.lease("w", 3, LONG)) == ["c"]
    assert await store.lease("w", 3, LONG) == []


async def test_a_lease_is_limited_to_the_run_that_was_asked_for(store: Store) -> None:
    await store.enqueue([rollout("a", run_id="other", priority=9), rollout("b")])
    assert names(await store.lease("w", 5, LONG, run_id="run")) == ["b"]
    assert await store.lease("w", 5, LONG, run_id="nobody") == []
    assert names(await store.lease("w", 5, LONG)) == ["a"]


async def test_a_lease_of_none_takes_nothing(store: Store) -> None:
    await store.enqueue([rollout("a")])
    assert await store.lease("w", 0, LONG) == []
    assert (await find(store, "a")).status is Status.QUEUED


async def test_an_attempt_shows_the_running_rollout_and_its_holder(store: Store) -> None:
    await store.enqueue([rollout("a")])
    before = time.time()
    attempt = await lease_one(store, "w7")
    assert (attempt.number, attempt.worker) == (1, "w7")
    assert before + LONG <= attempt.lease_until <= time.time() + LONG
    assert attempt.rollout == await find(store, "a")
    assert (attempt.rollout.status, attempt.rollout.attempts) == (Status.RUNNING, 1)


async def test_no_rollout_is_leased_twice_by_many_workers_at_once(store: Store) -> None:
    await store.enqueue([rollout(f"r{i}") for i in range(200)])
    leases = await asyncio.gather(*(store.lease(f"w{i}", 7, LONG) for i in range(40)))
    taken = [name for lease in leases for name in names(lease)]
    assert len(taken) == len(set(taken)) == 200


@pytest.mark.parametrize("hours", [2, -2])
async def test_a_clock_that_is_set_gives_no_live_lease_away_and_keeps_no_dead_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    await store.enqueue([rollout("live", max_attempts=2), rollout("dead", max_attempts=2)])
    (live,) = await store.lease("w", 1, LONG)
    (dead,) = await store.lease("w", 1, 0.05)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * hours)
    await asyncio.sleep(0.1)
    assert await store.wait_queued(0.0)
    assert names(await store.lease("other", 5, LONG)) == ["dead"]
    assert await store.heartbeat([dead], LONG) == []
    (kept,) = await store.heartbeat([live], LONG)
    assert not await store.wait_queued(0.0)
    assert (await store.finish(kept, reward=1.0)).status is Status.SUCCEEDED


async def test_a_lease_that_ran_out_gives_a_new_attempt_to_another(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    dead = await lease_one(store, "dead", GONE)
    alive = await lease_one(store, "alive")
    assert (alive.rollout.id, alive.number, alive.worker) == ("a", 2, "alive")
    with pytest.raises(LeaseLostError, match="'a'"):
        await store.finish(dead, reward=1.0)
    assert (await store.finish(alive, reward=0.5)).reward == 0.5


async def test_a_rollout_taken_back_keeps_its_place_in_the_queue(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2), rollout("b")])
    await lease_one(store, "dead", GONE)
    assert names(await store.lease("w", 2, LONG)) == ["a", "b"]


async def test_a_lease_that_ran_out_on_the_last_attempt_fails_the_rollout(store: Store) -> None:
    await store.enqueue([rollout("a")])
    await lease_one(store, "dead", GONE)
    assert await store.lease("w", 1, LONG) == []
    failed = await find(store, "a")
    assert failed.status is Status.FAILED
    assert failed.finished_at is not None
    assert "lease expired" in str(failed.error)
    assert "'dead'" in str(failed.error)


async def test_a_worker_that_is_late_but_not_replaced_may_still_finish(store: Store) -> None:
    await store.enqueue([rollout("a")])
    late = await lease_one(store, "late", GONE)
    assert (await store.finish(late, reward=1.0)).status is Status.SUCCEEDED


async def test_a_heartbeat_keeps_the_lease(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    attempt = await lease_one(store, "w", 0.05)
    (kept,) = await store.heartbeat([attempt], LONG)
    assert kept.lease_until > attempt.lease_until + 30
    assert kept.worker == "w"
    await asyncio.sleep(0.1)
    assert await store.lease("other", 1, LONG) == []
    await store.finish(kept, reward=1.0)


async def test_a_heartbeat_tells_what_was_lost(store: Store) -> None:
    await store.enqueue([rollout(name, max_attempts=2) for name in "abcd"])
    taken, ended, stopped, kept = await store.lease("w", 4, GONE)
    await store.finish(ended, reward=1.0)
    await store.cancel([stopped.rollout.id])
    await store.heartbeat([kept], LONG)
    await store.lease("other", 4, LONG)
    assert names(await store.heartbeat([taken, ended, stopped, kept], LONG)) == [kept.rollout.id]
    assert await store.heartbeat([], LONG) == []


# the end of an attempt ------------------------------------------------------------------------
async def test_a_finish_with_reward_succeeds_and_records_the_final_reward(store: Store) -> None:
    await store.enqueue([rollout("a")])
    done = await store.finish(await lease_one(store), reward=0.25)
    assert (done.status, done.reward, done.error) == (Status.SUCCEEDED, 0.25, None)
    assert done == await find(store, "a")
    (reward,) = (await store.get_rewards(["a"]))["a"]
    assert (reward.kind, reward.value, reward.attempt, reward.source) == ("final", 0.25, 1, "app")


async def test_a_repeated_finish_is_accepted_and_changes_nothing(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b", max_attempts=2)])
    first, second = await store.lease("w", 2, LONG)
    done = await store.finish(first, reward=1.0)
    assert await store.finish(first, reward=1.0) == done
    assert len((await store.get_rewards(["a"]))["a"]) == 1
    queued = await store.finish(second, error="broke")
    assert await store.finish(second, error="broke") == queued
    assert (await lease_one(store)).number == 2


async def test_a_different_second_finish_is_refused_and_changes_nothing(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    done = await store.finish(attempt, reward=1.0)
    with pytest.raises(LeaseLostError):
        await store.finish(attempt, reward=0.0)
    with pytest.raises(LeaseLostError):
        await store.finish(attempt, error="late")
    assert await find(store, "a") == done


async def test_a_finish_of_an_unknown_rollout_is_refused(store: Store) -> None:
    stranger = Attempt(rollout=rollout("x", attempts=1), number=1, worker="w", lease_until=0.0)
    with pytest.raises(LeaseLostError, match="not in the store"):
        await store.finish(stranger, reward=1.0)


async def test_an_error_is_retried_until_the_last_attempt_fails(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    again = await store.finish(await lease_one(store), error="first")
    assert (again.status, again.error, again.finished_at) == (Status.QUEUED, "first", None)
    failed = await store.finish(await lease_one(store), error="second")
    assert (failed.status, failed.error, failed.reward) == (Status.FAILED, "second", None)
    assert await store.lease("w", 1, LONG) == []
    assert (await store.get_rewards(["a"]))["a"] == []


async def test_a_success_after_a_retry_forgets_the_error(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    await store.finish(await lease_one(store), error="first")
    done = await store.finish(await lease_one(store), reward=1.0)
    assert (done.status, done.error, done.attempts) == (Status.SUCCEEDED, None, 2)


async def test_a_penalised_failure_ends_with_its_reward_and_no_further_attempt(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=3)])
    failed = await store.finish(await lease_one(store), reward=-1.0, error="broke")
    assert (failed.status, failed.reward, failed.error) == (Status.FAILED, -1.0, "broke")
    (reward,) = (await store.get_rewards(["a"]))["a"]
    assert (reward.kind, reward.value, reward.source) == ("final", -1.0, "penalty")
    assert await store.lease("w", 1, LONG) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308, -1.1e9])
async def test_a_reward_that_is_not_finite_or_too_large_is_refused(store: Store, value: float) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    with pytest.raises(RewardError, match=r"'a'.* from -1e9 to 1e9"):
        await store.finish(attempt, reward=value)
    with pytest.raises(RewardError, match=r"'a'.* from -1e9 to 1e9"):
        await store.add_rewards([Reward(rollout_id="a", attempt=1, value=value)])
    assert (await find(store, "a")).status is Status.RUNNING


async def test_a_finish_with_neither_succeeds_and_leaves_the_final_reward_to_others(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    done = await store.finish(attempt)
    assert (done.status, done.reward, done.error) == (Status.SUCCEEDED, None, None)
    assert await store.finish(attempt) == done == await find(store, "a")
    assert (await store.get_rewards(["a"]))["a"] == []
    await store.add_rewards([Reward(rollout_id="a", attempt=1, value=0.5, source="judge")])
    assert [one.value for one in (await store.get_rewards(["a"]))["a"]] == [0.5]


async def test_a_finish_with_neither_takes_the_last_final_reward_of_the_attempt_and_stores_no_other(
    store: Store,
) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    await store.add_rewards([Reward(rollout_id="a", attempt=1, value=9.0)])
    await store.finish(await lease_one(store), error="broke")
    attempt = await lease_one(store)
    given = [
        Reward(rollout_id="a", attempt=2, value=0.75, created_at=20.0),
        Reward(rollout_id="a", attempt=2, value=0.25, created_at=10.0),
        Reward(rollout_id="a", attempt=2, value=3.0, agent="writer", created_at=30.0),
        Reward(rollout_id="a", attempt=2, value=4.0, kind="intermediate", created_at=30.0),
    ]
    await store.add_rewards(given)
    done = await store.finish(attempt)
    assert (done.status, done.reward, done.error) == (Status.SUCCEEDED, 0.75, None)
    assert await store.finish(attempt) == done == await find(store, "a")
    assert (await store.get_rewards(["a"]))["a"] == given


async def test_the_last_final_reward_of_a_succeeded_rollout_becomes_its_own(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b"), rollout("broken"), rollout("running")])
    for attempt in await store.lease("w", 3, LONG):
        failed = attempt.rollout.id == "broken"
        await store.finish(attempt, **({"error": "broke"} if failed else {"reward": 0.5}))
    await lease_one(store)

    def judged(name: str, value: float, **more: Any) -> Reward:
        return Reward(rollout_id=name, attempt=1, value=value, source="judge", **more)

    done = await find(store, "a")
    await store.add_rewards([judged("a", 9.0, agent="writer"), judged("a", 9.0, kind="intermediate")])
    await store.add_rewards(
        [judged("a", 9.0).model_copy(update={"attempt": 2}), judged("a", 9.0, created_at=1.0)]
    )
    assert await find(store, "a") == done
    await store.add_rewards(
        [judged("a", 0.25), judged("b", 0.75), judged("broken", 1.0), judged("running", 1.0)]
    )
    assert await find(store, "a") == done.model_copy(update={"reward": 0.25})
    assert [one.reward for one in await store.find_rollouts("run")] == [0.25, 0.75, None, None]
    assert names(await store.find_rollouts("run", order="reward", newest=True)) == ["a", "b"]
    await store.add_rewards([judged("a", 0.875)])
    assert names(await store.find_rollouts("run", order="reward", newest=True)) == ["b", "a"]
    assert sum(one.reward for one in await store.count_rollouts("run")) == 0.875 + 0.75


async def test_a_finish_with_neither_of_a_released_attempt_is_no_repetition(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    await store.release([attempt])
    with pytest.raises(LeaseLostError, match="queued"):
        await store.finish(attempt)


async def test_a_cancelled_rollout_is_never_leased_and_its_finish_is_refused(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b"), rollout("c")])
    running, done = await store.lease("w", 2, LONG)
    await store.finish(done, reward=1.0)
    assert await store.cancel(["a", "b", "c", "c", "unknown"]) == 2
    assert [one.status for one in await store.find_rollouts("run")] == ["cancelled", "succeeded", "cancelled"]
    assert await store.lease("w", 3, LONG) == []
    with pytest.raises(LeaseLostError, match="cancelled"):
        await store.finish(running, reward=1.0)
    assert await store.cancel([]) == 0


async def test_a_released_attempt_costs_nothing_and_its_number_is_not_used_again(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    given_back = await lease_one(store)
    await store.add_call(call("old", given_back))
    await store.release([given_back])
    assert (await find(store, "a")).status is Status.QUEUED
    again = await lease_one(store)
    assert again.number == 2
    assert (await store.get_calls(["a"]))["a"] == []
    await store.finish(again, error="first failure")
    assert (await store.finish(await lease_one(store), error="second")).status is Status.FAILED


async def test_only_a_running_attempt_can_be_released(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b", max_attempts=2)])
    done, lost = await store.lease("w", 2, GONE)
    await store.finish(done, reward=1.0)
    taken = await lease_one(store, "other")
    await store.release([done, lost])
    await store.release([])
    assert (await find(store, "a")).status is Status.SUCCEEDED
    assert (await store.finish(taken, reward=1.0)).attempts == 2


async def test_what_runs_is_released_beside_an_older_attempt_of_it_in_any_order(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    old = await lease_one(store, seconds=GONE)
    for given_back in (2, 3):
        running = await lease_one(store)
        assert running.number == given_back
        await store.release([old, running] if given_back == 2 else [running, old])
        assert (await find(store, "a")).status is Status.QUEUED


async def test_reclaim_takes_back_what_a_dead_worker_of_that_name_held(store: Store) -> None:
    await store.enqueue([rollout(name) for name in "abc"])
    mine, done = await store.lease("w", 2, LONG)
    await store.finish(done, reward=1.0)
    await lease_one(store, "other")
    assert await store.reclaim("w") == 1
    assert await store.reclaim("w") == 0
    again = await lease_one(store, "w")
    assert (again.rollout.id, again.number) == (mine.rollout.id, 2)
    with pytest.raises(LeaseLostError):
        await store.finish(mine, reward=1.0)


# looking and waiting --------------------------------------------------------------------------
async def test_rollouts_are_found_by_run_step_split_and_status(store: Store) -> None:
    await store.enqueue(
        [
            rollout("a"),
            rollout("b", step=1),
            rollout("c", step=1, split="validation"),
            rollout("d", run_id="other"),
        ]
    )
    await store.finish(await lease_one(store), reward=1.0)
    assert names(await store.find_rollouts("run")) == ["a", "b", "c"]
    assert names(await store.find_rollouts("run", step=1)) == ["b", "c"]
    assert names(await store.find_rollouts("run", step=1, split="validation")) == ["c"]
    assert names(await store.find_rollouts("run", status=Status.SUCCEEDED)) == ["a"]
    assert names(await store.find_rollouts("run", status=Status.QUEUED)) == ["b", "c"]
    await store.enqueue([rollout("z"), rollout("y", step=1)])
    assert names(await store.find_rollouts("run")) == ["a", "b", "c", "z", "y"]
    assert names(await store.find_rollouts("run", step=1)) == ["b", "c", "y"]
    assert await store.find_rollouts("run", step=9) == []
    assert await store.find_rollouts("nobody") == []


async def enqueue_many(store: Store, count: int, run: str = "run") -> None:
    """Rollouts of two splits over ten steps; the first ones are running or have ended."""
    splits = "train", "train", "validation"
    many = [
        rollout(f"{run}:{n}", run_id=run, step=n % 10, split=splits[n % 3], group_id=f"g{n % 10}")
        for n in range(count)
    ]
    await store.enqueue(many)
    attempts = await store.lease("w", count // 2, LONG, run_id=run)
    for place, attempt in enumerate(attempts[: count // 4]):
        await store.finish(attempt, **({"error": "broke"} if place % 3 == 0 else {"reward": place / 8}))


FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"step": 3},
    {"split": "validation"},
    {"status": Status.RUNNING},
    {"status": Status.QUEUED, "split": "train"},
    {"step": 0, "status": Status.SUCCEEDED, "split": "train"},
    {"step": 99},
)


@pytest.mark.parametrize("wanted", FILTERS, ids=lambda wanted: "-".join(wanted) or "all")
async def test_pages_of_rollouts_together_are_the_whole(store: Store, wanted: dict[str, Any]) -> None:
    await enqueue_many(store, 120)
    await enqueue_many(store, 40, "other")
    whole = await store.find_rollouts("run", **wanted)
    every = await store.find_rollouts("run")
    assert whole == [one for one in every if all(getattr(one, k) == v for k, v in wanted.items())]
    for limit in (1, 7, 1000):
        pages: list[Rollout] = []
        while page := await store.find_rollouts(
            "run", **wanted, after=pages[-1].id if pages else None, limit=limit
        ):
            assert len(page) <= limit
            pages += page
        assert pages == whole
    assert await store.find_rollouts("run", **wanted, limit=5, newest=True) == whole[-5:]
    assert await store.find_rollouts("run", **wanted, after="run:30", newest=True) == [
        one for one in whole if int(one.id[4:]) > 30
    ]


async def test_a_page_goes_on_after_a_rollout_that_has_changed_and_never_after_another_run_s(
    store: Store,
) -> None:
    await enqueue_many(store, 20)
    await enqueue_many(store, 4, "other")
    (first, *_) = rest = await store.find_rollouts("run", status=Status.QUEUED)
    await store.cancel([first.id])
    assert await store.find_rollouts("run", status=Status.QUEUED, after=first.id) == rest[1:]
    for unknown in ("nobody", "other:1"):
        with pytest.raises(NotFoundError, match=f"{unknown!r} in run 'run'"):
            await store.find_rollouts("run", after=unknown, limit=3)


@pytest.mark.parametrize("wanted", FILTERS, ids=lambda wanted: "-".join(wanted) or "all")
async def test_pages_go_backwards_and_by_reward(store: Store, wanted: dict[str, Any]) -> None:
    await enqueue_many(store, 120)
    await enqueue_many(store, 40, "other")
    whole = await store.find_rollouts("run", **wanted)
    rewarded = [one for one in whole if one.reward is not None]
    ranked = sorted(rewarded, key=lambda one: one.reward or 0.0)
    for order, expected in (("enqueued", whole), ("reward", ranked)):
        assert await store.find_rollouts("run", **wanted, order=order) == expected
        for limit in (1, 3, 1000):
            pages: list[Rollout] = []
            while page := await store.find_rollouts(
                "run",
                **wanted,
                before=pages[0].id if pages else None,
                limit=limit,
                newest=True,
                order=order,
            ):
                assert len(page) <= limit
                pages = [*page, *pages]
            assert pages == expected
        if expected:
            ends: dict[str, Any] = {"after": expected[0].id, "before": expected[-1].id, "order": order}
            assert await store.find_rollouts("run", **wanted, **ends) == expected[1:-1]
            assert await store.find_rollouts("run", **wanted, **ends, limit=1) == expected[1:-1][:1]


async def test_a_page_by_reward_never_begins_at_a_rollout_without_one(store: Store) -> None:
    await enqueue_many(store, 20)
    (waiting, *_) = await store.find_rollouts("run", status=Status.QUEUED)
    for cursor in ({"after": waiting.id}, {"before": waiting.id}):
        with pytest.raises(NotFoundError, match=f"{waiting.id!r} has no reward"):
            await store.find_rollouts("run", **cursor, order="reward")
    with pytest.raises(NotFoundError, match="no rollout 'missing'"):
        await store.find_rollouts("run", before="missing")


async def test_rollouts_are_counted_as_they_are_found(store: Store) -> None:
    await enqueue_many(store, 120)
    await enqueue_many(store, 40, "other")
    await store.cancel(["run:119"])
    found = await store.find_rollouts("run")
    counts = await store.count_rollouts("run")
    keys = [(one.step, one.split, one.status) for one in counts]
    assert keys == sorted({(one.step, one.split, one.status) for one in found})
    for one in counts:
        of_it = [r for r in found if (r.step, r.split, r.status) == (one.step, one.split, one.status)]
        rewards = [r.reward for r in of_it if r.reward is not None]
        assert (one.count, one.rewarded) == (len(of_it), len(rewards))
        assert one.reward == pytest.approx(sum(rewards))
    assert await store.count_rollouts("nobody") == []


async def test_rollouts_are_got_by_id_as_they_stand(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b", run_id="other")])
    attempt = await lease_one(store)
    got = await store.get_rollouts(["b", "a", "b"])
    assert (names(got), got[1]) == (["b", "a", "b"], attempt.rollout)
    assert await store.get_rollouts([]) == []
    with pytest.raises(NotFoundError, match="'nobody'"):
        await store.get_rollouts(["a", "nobody"])


async def test_waiting_ends_at_once_when_the_last_rollout_finishes(store: Store) -> None:
    await store.enqueue([rollout(name) for name in "abc"])
    attempts = await store.lease("w", 3, LONG)
    await store.finish(attempts[0], reward=1.0)
    waiting = asyncio.create_task(store.wait_finished(["c", "b", "a"], timeout=30))
    await asyncio.sleep(0.02)
    await store.finish(attempts[1], error="broke")
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await store.cancel(["c"])
    finished = await asyncio.wait_for(waiting, 20)
    assert [(one.id, one.status) for one in finished] == [
        ("c", Status.CANCELLED),
        ("b", Status.FAILED),
        ("a", Status.SUCCEEDED),
    ]


async def test_waiting_hears_of_a_rollout_that_failed_with_its_lease(store: Store) -> None:
    await store.enqueue([rollout("a")])
    await lease_one(store, "dead", GONE)
    waiting = asyncio.create_task(store.wait_finished(["a"], timeout=30))
    await asyncio.sleep(0.02)
    await store.lease("w", 1, LONG)
    assert [one.status for one in await waiting] == [Status.FAILED]


async def test_waiting_gives_what_is_finished_when_the_time_is_up(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b")])
    await store.finish(await lease_one(store), reward=1.0)
    assert names(await store.wait_finished(["a", "b"], timeout=0.1)) == ["a"]
    assert await store.wait_finished([]) == []
    assert names(await store.wait_finished(["a"])) == ["a"]


async def test_waiting_for_an_unknown_rollout_is_refused(store: Store) -> None:
    with pytest.raises(NotFoundError, match="'nobody'"):
        await store.wait_finished(["nobody"])


# what happened --------------------------------------------------------------------------------
async def test_a_call_comes_back_as_it_was_recorded(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    full = call(
        "c",
        attempt,
        agent="planner",
        trained=False,
        dialect="responses",
        model="m",
        request={"messages": [{"role": "user", "content": "hi"}], "n": 2},
        prompt_ids=[0, 1, 2**32 - 1],
        choices=[
            Choice(index=0, completion_ids=[5, 6], logprobs=[-0.5, 0.0], finish_reason="stop"),
            Choice(index=1, message={"content": "no ids"}),
            Choice(index=2, completion_ids=[], logprobs=[]),
            Choice(index=3, completion_ids=[7], logprobs=[-math.inf], message={"content": None}),
            Choice(index=4, kept="masks", left_out="a penalty", as_text=["<|im_end|>", "</t>"]),
        ],
        temperature=0.7,
        policy_version=0,
        policy="checker",
        status="cancelled",
        error="gone",
        response_id="resp_1",
        endpoint="https://hosted.example/v1",
        grammar='start: "\u00e9" /[0-9]+/',
    )
    bare = call("d", attempt, started=2.0)
    await store.add_call(full)
    await store.add_call(bare)
    assert (await store.get_calls(["a"]))["a"] == [full, bare]


async def test_logprobs_keep_float32_precision(store: Store) -> None:
    await store.enqueue([rollout("a")])
    logprobs = [-0.1, -1e-7, -12.3456789]
    choice = Choice(completion_ids=[1, 2, 3], logprobs=logprobs)
    await store.add_call(call("c", await lease_one(store), choices=[choice]))
    (found,) = (await store.get_calls(["a"]))["a"]
    assert found.choices[0].logprobs == pytest.approx(logprobs, rel=2**-23)


async def test_a_call_recorded_again_replaces_the_earlier_try(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    await store.add_call(call("same", attempt, status="failed"))
    await store.add_call(call("same", attempt, status="completed"))
    assert [one.status for one in (await store.get_calls(["a"]))["a"]] == ["completed"]


async def test_a_completed_call_is_never_replaced(store: Store) -> None:
    """A reply sampled under its id later is a call of its own if it completed, else it is left out."""
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    sampled = Choice(completion_ids=[5], logprobs=[-0.5])
    first = call("same", attempt, prompt_ids=[1], choices=[sampled], response_id="reply")
    second = first.model_copy(update={"prompt_ids": [2], "started_at": 3.0})
    third = first.model_copy(update={"prompt_ids": [3]})
    for running in (False, True):
        await store.add_call(first, running=running)  # twice, as when the answer to the first was lost
        await store.add_call(first.model_copy(update={"status": "failed"}), running=running)
        await store.add_call(second, running=running)
        await store.add_call(third, running=running)
        await store.add_call(first.model_copy(update={"status": "cancelled"}), running=running)
    found = (await store.get_calls(["a"]))["a"]
    assert sorted(one.prompt_ids or [] for one in found) == [[1], [2], [3]]
    assert first in found
    assert {one.status for one in found} == {"completed"}
    assert {one.response_id for one in found} == {"reply"}
    assert len({one.id for one in found}) == 3


async def test_of_two_completed_calls_under_one_id_at_once_neither_is_lost(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    several = [call("same", attempt, started=float(n), prompt_ids=[n]) for n in range(10)]
    await asyncio.gather(*(store.add_call(one, running=True) for one in several))
    found = (await store.get_calls(["a"]))["a"]
    assert [one.prompt_ids for one in found] == [[n] for n in range(10)]


async def test_a_call_of_a_running_attempt_is_refused_once_that_has_ended(store: Store) -> None:
    await store.enqueue([rollout(name, max_attempts=2) for name in ("done", "again", "back", "gone")])
    done, again, back, gone = await store.lease("w", 4, LONG)
    for attempt in (done, again, back, gone):
        await store.add_call(call("early", attempt), running=True)
    await store.finish(done, reward=1.0)
    await store.finish(again, error="broke")
    await store.release([back])
    await store.cancel(["gone"])
    await store.lease("w", 1, LONG)
    for attempt in (done, again, back, gone):
        for name in ("early", "late"):
            with pytest.raises(
                LeaseLostError, match=f"attempt 1 of rollout '{attempt.rollout.id}' has ended"
            ):
                await store.add_call(call(name, attempt, model="late"), running=True)
        await store.add_call(call("early", attempt), running=True)  # it is stored: only the answer was lost
    unknown = call("c", done).model_copy(update={"rollout_id": "nobody"})
    with pytest.raises(NotFoundError, match="'nobody'"):
        await store.add_call(unknown, running=True)
    found = await store.get_calls(["done", "gone", "nobody"])
    assert {name: [one.id for one in calls] for name, calls in found.items()} == {
        "done": ["early"],
        "gone": ["early"],
        "nobody": [],
    }


async def test_a_call_is_in_before_the_end_of_its_attempt_or_refused(store: Store) -> None:
    """However they meet: who has seen the end sees every call that was accepted."""
    await store.enqueue([rollout(f"r{n}") for n in range(20)])
    attempts = await store.lease("w", 20, LONG)
    at_the_end: dict[str, list[Call]] = {}

    async def give(attempt: Attempt) -> bool:
        try:
            await store.add_call(call("c", attempt), running=True)
        except LeaseLostError:
            return False
        return True

    async def end(attempt: Attempt) -> None:
        await store.finish(attempt, reward=1.0)
        at_the_end.update(await store.get_calls([attempt.rollout.id]))

    halves = attempts[:10], attempts[10:]
    both = [asyncio.gather(give(one), end(one)) for one in halves[0]]
    both += [asyncio.gather(end(one), give(one)) for one in halves[1]]
    for attempt, ends in zip(attempts, await asyncio.gather(*both), strict=True):
        accepted = True in ends
        assert len(at_the_end[attempt.rollout.id]) == accepted
        assert len((await store.get_calls([attempt.rollout.id]))[attempt.rollout.id]) == accepted


async def test_identical_requests_under_two_ids_are_two_calls(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    for name in ("c1", "c2"):
        await store.add_call(call(name, attempt, request={"messages": ["x"]}, prompt_ids=[1, 2]))
    assert [one.id for one in (await store.get_calls(["a"]))["a"]] == ["c1", "c2"]


async def test_calls_come_in_the_order_they_started(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b")])
    first, second = await store.lease("w", 2, LONG)
    for name, attempt, started in [("c3", first, 3.0), ("c1", first, 1.0), ("x", second, 9.0)]:
        await store.add_call(call(name, attempt, started=started))
    found = await store.get_calls(["b", "a", "nobody"])
    assert {key: [one.id for one in calls] for key, calls in found.items()} == {
        "b": ["x"],
        "a": ["c1", "c3"],
        "nobody": [],
    }


async def test_only_calls_and_rewards_of_the_last_attempt_count(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2)])
    first = await lease_one(store)
    await store.add_call(call("same", first))
    await store.add_rewards([Reward(rollout_id="a", attempt=1, value=9.0, kind="intermediate")])
    await store.finish(first, error="broke")
    second = await lease_one(store)
    await store.add_call(call("same", second, model="second"))
    await store.add_call(call("late", first))
    await store.add_rewards([Reward(rollout_id="a", attempt=1, value=8.0, kind="intermediate")])
    await store.finish(second, reward=1.0)
    assert [one.model for one in (await store.get_calls(["a"]))["a"]] == ["second"]
    assert [one.value for one in (await store.get_rewards(["a"]))["a"]] == [1.0]


async def test_a_call_outside_any_rollout_is_accepted(store: Store) -> None:
    alone = Call(id="c", rollout_id=None, attempt=None, agent="x", trained=False, started_at=0, ended_at=1)
    await store.add_call(alone)
    await store.add_call(alone)


async def test_rewards_keep_their_address_and_the_order_given(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    given = [
        Reward(
            rollout_id="a",
            attempt=1,
            value=-0.1,
            kind="intermediate",
            agent="w",
            call_id="c2",
            source="sql",
            reason="no such table",
        ),
        Reward(rollout_id="a", attempt=1, value=0.2, kind="intermediate", call_id="c1"),
    ]
    for reward in given:
        await store.add_rewards([reward])
    await store.finish(attempt, reward=1.0)
    found = await store.get_rewards(["a", "nobody"])
    assert found["a"][:2] == given
    assert [one.kind for one in found["a"]] == ["intermediate", "intermediate", "final"]
    assert found["nobody"] == []


async def test_rewards_of_running_attempts_are_stored_all_or_none(store: Store) -> None:
    await store.enqueue([rollout("a", max_attempts=2), rollout("b"), rollout("c")])
    first, other = await store.lease("w", 2, LONG)

    def reward(attempt: Attempt, value: float = 1.0) -> Reward:
        return Reward(rollout_id=attempt.rollout.id, attempt=attempt.number, value=value)

    await store.add_rewards([reward(first), reward(other)], running=True)
    await store.finish(first, error="broke")
    queued = Reward(rollout_id="c", attempt=0, value=1.0)
    unknown = Reward(rollout_id="nobody", attempt=1, value=1.0)
    for refused, error in (
        (reward(first), LeaseLostError),
        (queued, LeaseLostError),
        (unknown, NotFoundError),
    ):
        with pytest.raises(error, match=repr(refused.rollout_id)):
            await store.add_rewards([reward(other, 2.0), refused], running=True)
    second = await lease_one(store)
    with pytest.raises(LeaseLostError, match="attempt 1 of rollout 'a' has ended"):
        await store.add_rewards([reward(first)], running=True)
    await store.add_rewards([reward(second, 0.5)], running=True)
    await store.finish(other, reward=3.0)
    with pytest.raises(LeaseLostError, match=r"'b' has ended.*succeeded"):
        await store.add_rewards([reward(other, 2.0)], running=True)
    await store.add_rewards([], running=True)
    found = await store.get_rewards(["a", "b"])
    assert {name: [one.value for one in of_one] for name, of_one in found.items()} == {
        "a": [0.5],
        "b": [1.0, 3.0],
    }


async def test_a_reward_that_is_sent_again_under_its_id_counts_once(store: Store) -> None:
    def reward(value: float, own: str | None, attempt: int = 1) -> Reward:
        return Reward(rollout_id="a", attempt=attempt, value=value, kind="intermediate", id=own)

    await store.enqueue([rollout("a", max_attempts=2), rollout("b")])
    first = await lease_one(store)
    await store.add_rewards([reward(1.0, "x"), reward(2.0, "x"), reward(3.0, None)], running=True)
    await store.add_rewards([reward(4.0, "x"), reward(5.0, "y"), reward(3.0, None)], running=True)
    await store.add_rewards([reward(1.0, "x").model_copy(update={"rollout_id": "b"})])
    found = (await store.get_rewards(["a"]))["a"]
    assert [(one.value, one.id) for one in found] == [(1.0, "x"), (3.0, None), (5.0, "y"), (3.0, None)]
    await store.finish(first, error="broke")
    await store.add_rewards([reward(1.0, "x"), reward(5.0, "y")], running=True)  # the answer was lost
    await lease_one(store)
    await store.add_rewards([reward(6.0, "x", attempt=2)], running=True)
    assert [one.value for one in (await store.get_rewards(["a"]))["a"]] == [6.0]


async def test_of_many_that_send_one_reward_at_once_one_counts(store: Store) -> None:
    await store.enqueue([rollout("a")])
    attempt = await lease_one(store)
    again = Reward(rollout_id="a", attempt=attempt.number, value=1.0, id="x")
    await asyncio.gather(*(store.add_rewards([again], running=True) for _ in range(20)))
    assert len((await store.get_rewards(["a"]))["a"]) == 1


async def test_a_reward_is_in_before_the_end_of_its_attempt_or_refused(store: Store) -> None:
    """However they meet: what was accepted is what the rollout ends with."""
    await store.enqueue([rollout(f"r{n}") for n in range(20)])
    attempts = await store.lease("w", 20, LONG)
    await store.add_rewards(
        [Reward(rollout_id=a.rollout.id, attempt=1, value=0.0, created_at=1.0) for a in attempts]
    )

    async def give(attempt: Attempt) -> bool:
        try:
            late = Reward(rollout_id=attempt.rollout.id, attempt=1, value=1.0, created_at=2.0)
            await store.add_rewards([late], running=True)
        except LeaseLostError:
            return False
        return True

    halves = attempts[:10], attempts[10:]
    first_given = [each for attempt in halves[0] for each in (give(attempt), store.finish(attempt))]
    first_ended = [each for attempt in halves[1] for each in (store.finish(attempt), give(attempt))]
    await asyncio.gather(*first_given, *first_ended)
    for one in await store.find_rollouts("run"):
        stored = (await store.get_rewards([one.id]))[one.id]
        assert one.reward == max(reward.value for reward in stored)


async def test_events_come_back_as_they_were_recorded_by_the_time_they_started(store: Store) -> None:
    await store.enqueue([rollout("a"), rollout("b")])
    attempts = await store.lease("w", 2, LONG)
    tool = ToolEvent(
        id="t1",
        rollout_id="a",
        attempt=1,
        agent="writer",
        framework="langgraph",
        name="run_sql",
        arguments='{"sql": "half a parrot \\ud83e',
        error="OperationalError: no such table: boats",
        error_type="raised",
        tool_call_id="call_7",
        call_id="c1",
        started_at=2.0,
        ended_at=2.5,
    )
    span = Span(
        id="00f067aa0ba902b7",
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        parent_id="00f067aa0ba90200",
        rollout_id="a",
        attempt=1,
        agent="planner",
        name="chat gpt-4o",
        span_kind="client",
        attributes={"gen_ai.usage.input_tokens": 7, "list": [1.5, True, None, "é"]},
        events=[{"name": "exception", "time": 1.5, "attributes": {}}],
        error="",
        started_at=1.0,
        ended_at=3.0,
    )
    await store.add_events([tool, span])
    await store.add_events([])
    found = await store.get_events(["a", "b", "nobody"])
    assert found == {"a": [span, tool], "b": [], "nobody": []}
    assert len(attempts) == 2


async def test_an_event_recorded_again_replaces_the_earlier_and_only_the_last_attempt_counts(
    store: Store,
) -> None:
    def tool(attempt: int, result: str) -> ToolEvent:
        at = {"started_at": 1.0, "ended_at": 1.0}
        return ToolEvent(id="t", rollout_id="a", attempt=attempt, agent="w", name="f", result=result, **at)

    await store.enqueue([rollout("a", max_attempts=2)])
    first = await lease_one(store)
    await store.add_events([tool(1, "early")])
    await store.finish(first, error="broke")
    await lease_one(store)
    assert await store.get_events(["a"]) == {"a": []}
    await store.add_events([tool(2, "once")])
    await store.add_events([tool(2, "twice"), tool(1, "late")])
    assert await store.get_events(["a"]) == {"a": [tool(2, "twice")]}


async def test_spans_of_equal_ids_in_two_traces_are_two(store: Store) -> None:
    def span(trace: str, name: str) -> Span:
        at = {"started_at": 1.0, "ended_at": 1.0}
        return Span(id="5" * 16, trace_id=trace * 32, rollout_id="a", attempt=1, name=name, **at)

    await store.enqueue([rollout("a")])
    await lease_one(store)
    await store.add_events([span("1", "early"), span("2", "other")])
    await store.add_events([span("1", "late")])
    found = (await store.get_events(["a"]))["a"]
    assert sorted(event.name for event in found) == ["late", "other"]


async def test_what_was_credited_is_replaced_and_only_the_last_attempt_counts(store: Store) -> None:
    def credited(attempt: int, call_id: str, choice: int, advantage: float | None) -> Credited:
        return Credited(
            rollout_id="a",
            attempt=attempt,
            call_id=call_id,
            choice=choice,
            advantage=advantage,
            value=0.1,
            weight=1 / 3,
        )

    await store.enqueue([rollout("a", max_attempts=2), rollout("b")])
    first = await lease_one(store)
    await store.add_credited([credited(1, "c", 0, 0.5)])
    await store.finish(first, error="broke")
    (again, _) = await store.lease("w", 2, LONG)
    assert again.number == 2
    assert await store.get_credited(["a", "b"]) == {"a": [], "b": []}
    await store.add_credited(
        [credited(2, "d", 0, -0.25), credited(2, "c", 1, 1.0), credited(2, "c", 0, 0.75)]
    )
    await store.add_credited([credited(2, "c", 1, None)])
    await store.add_credited([])
    assert await store.get_credited(["a"]) == {
        "a": [credited(2, "c", 0, 0.75), credited(2, "c", 1, None), credited(2, "d", 0, -0.25)]
    }


async def test_nothing_in_a_text_or_number_is_lost(store: Store) -> None:
    hard: dict[str, JsonValue] = {
        "emoji": "🦜\u0000\u2028é",
        "half": "\ud83e",
        "big": 10**30,
        "nan": math.inf,
        "deep": [[[{}]]],
    }
    await store.enqueue([rollout("ü/'\"; DROP TABLE", task=Task(input=hard))])
    attempt = await lease_one(store)
    await store.add_call(call("c", attempt, agent="агент", request=hard))
    await store.put_run(Run(id="run", config=hard))
    (found,) = (await store.get_calls([attempt.rollout.id]))[attempt.rollout.id]
    run = await store.find_run("run")
    assert attempt.rollout.task.input == found.request == hard
    assert found.agent == "агент"
    assert run is not None
    assert run.config == hard


BAD_IDS = {"": "is empty", "a\0b": "NUL", "half \ud83e": "half a surrogate", "x" * 513: "has 513 characters"}


@pytest.mark.parametrize("name", BAD_IDS, ids=["empty", "NUL", "half", "long"])
async def test_an_id_that_some_store_could_not_find_again_is_refused_by_all(store: Store, name: str) -> None:
    await store.enqueue([rollout("a"), rollout("b")])
    attempt = await lease_one(store)
    alone = Run(id="run").model_copy(update={"id": name})
    resource = ResourceVersion(run_id="run", name=name, version=1, uri=None)
    task = Task(id="t", input={}).model_copy(update={"id": name})
    refused = {
        "Rollout.id": store.enqueue([rollout("c"), rollout(name)]),
        "Rollout.run_id": store.enqueue([rollout("c", run_id=name)]),
        "Rollout.group_id": store.enqueue([rollout("c", group_id=name)]),
        "Task.id": store.enqueue([rollout("c").model_copy(update={"task": task})]),
        "the worker": store.lease(name, 1, LONG),
        "Call.id": store.add_call(call(name, attempt)),
        "Reward.id": store.add_rewards([Reward(rollout_id="a", attempt=1, value=1.0, id=name)]),
        "Run.id": store.put_run(alone),
        "ResourceVersion.name": store.put_resource(resource),
        "Metrics.run_id": store.put_metrics(Metrics(run_id=name, step=0, values={})),
        "Member.name": store.put_member(Member(run_id="run", role="runner", name=name)),
        "Alert.id": store.add_alerts([Alert(run_id="run", id=name, rule="r", message="m")]),
    }
    for field, operation in refused.items():
        with pytest.raises(DataError, match=f"{field} .*{BAD_IDS[name]}"):
            await operation
    assert names(await store.find_rollouts("run")) == ["a", "b"]
    assert [one.status for one in await store.find_rollouts("run")] == ["running", "queued"]


async def test_a_remark_with_half_a_character_is_recorded(store: Store) -> None:
    await store.enqueue([rollout("a")])
    broken = call("c", await lease_one(store)).model_copy(update={"error": "half a parrot \ud83e"})
    await store.add_call(broken)
    await store.add_rewards(
        [Reward(rollout_id="a", attempt=1, value=1.0).model_copy(update={"reason": "\ud83e"})]
    )
    (found,) = (await store.get_calls(["a"]))["a"]
    assert str(found.error).startswith("half a parrot")
    assert len((await store.get_rewards(["a"]))["a"]) == 1


async def test_a_call_of_hundreds_of_thousands_of_tokens_comes_back_whole(store: Store) -> None:
    await store.enqueue([rollout("a")])
    ids = list(range(300_000))
    big = call("c", await lease_one(store), prompt_ids=ids, request={"text": "x" * 5_000_000})
    await store.add_call(big)
    assert (await store.get_calls(["a"]))["a"] == [big]


# what is learnt -------------------------------------------------------------------------------
async def test_runs_are_replaced_by_id_and_listed_newest_first(store: Store) -> None:
    old, new = Run(id="old", created_at=1.0), Run(id="new", created_at=2.0, folder="/f", config={"a": [1]})
    await store.put_run(new)
    await store.put_run(old)
    await store.put_run(old.model_copy(update={"status": "finished"}))
    assert await store.list_runs() == [new, old.model_copy(update={"status": "finished"})]
    assert await store.find_run("new") == new
    assert await store.find_run("nobody") is None


async def test_resources_are_kept_by_version(store: Store) -> None:
    def version(number: int, **fields: object) -> ResourceVersion:
        return ResourceVersion.model_validate(
            {"run_id": "run", "version": number, "uri": f"v{number}", **fields}
        )

    prompt = version(1, name="prompt", kind="prompt")
    for one in (
        version(10),
        version(2),
        version(0),
        version(2, uri="new", parent=0, metrics={"r": 0.5}),
        prompt,
    ):
        await store.put_resource(one)
    assert [(one.version, one.uri) for one in await store.list_resources("run")] == [
        (0, "v0"),
        (2, "new"),
        (10, "v10"),
    ]
    assert (await store.list_resources("run"))[1].metrics == {"r": 0.5}
    assert await store.list_resources("run", "prompt") == [prompt]
    assert await store.list_resources("nobody") == []


async def test_metrics_are_kept_by_step(store: Store) -> None:
    for step, value in [(2, 0.2), (1, 0.1), (2, 0.3)]:
        await store.put_metrics(Metrics(run_id="run", step=step, values={"reward": value, "kl": math.inf}))
    found = await store.list_metrics("run")
    assert [(one.step, one.values["reward"]) for one in found] == [(1, 0.1), (2, 0.3)]
    assert found[0].values["kl"] == math.inf
    assert await store.list_metrics("nobody") == []
    for step in (10, 7):
        await store.put_metrics(Metrics(run_id="run", step=step, values={"reward": 0.5}))
    assert [one.step for one in await store.list_metrics("run", since=2)] == [2, 7, 10]
    assert [one.step for one in await store.list_metrics("run", since=3, limit=1)] == [7]
    assert await store.list_metrics("run", since=11) == []


# many threads ---------------------------------------------------------------------------------
async def test_event_loops_in_other_threads_can_use_the_store(store: Store) -> None:
    await store.enqueue([rollout(f"r{i}") for i in range(60)])

    async def work(worker: str) -> None:
        while attempts := await store.lease(worker, 4, LONG):
            for attempt in attempts:
                await store.add_call(call("c", attempt))
                await store.finish(attempt, reward=1.0)

    threads = [Thread(target=lambda i=i: asyncio.run(work(f"w{i}"))) for i in range(3)]
    for thread in threads:
        thread.start()
    finished = await store.wait_finished([f"r{i}" for i in range(60)], timeout=30)
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert len(finished) == 60
    calls = await store.get_calls(names(finished))
    assert all(len(found) == 1 for found in calls.values())


async def test_an_operation_that_fails_harms_no_other_of_the_same_moment(store: Store) -> None:
    await store.enqueue([rollout(f"r{i}") for i in range(20)])
    attempts = await store.lease("w", 20, LONG)
    stranger = Attempt(rollout=rollout("x", attempts=1), number=1, worker="w", lease_until=0.0)
    results = await asyncio.gather(
        *(store.finish(attempt, reward=1.0) for attempt in [*attempts[:10], stranger, *attempts[10:]]),
        return_exceptions=True,
    )
    assert isinstance(results[10], LeaseLostError)
    assert all(isinstance(one, Rollout) for i, one in enumerate(results) if i != 10)
    assert len(await store.find_rollouts("run", status=Status.SUCCEEDED)) == 20


# who plays in a run, and what is wrong with it ------------------------------------------------
async def test_members_are_as_they_last_said(store: Store) -> None:
    worker = Member(run_id="run", role="runner", name="b", data={"pid": 7, "slots": [1, None]}, seen_at=5.0)
    others = [worker.model_copy(update=changed) for changed in ({"name": "a"}, {"run_id": "x"})]
    gateway = Member(run_id="run", role="gateway", name="g", url="http://127.0.0.1:1", started_at=1.0)
    for member in (worker, gateway, *others):
        await store.put_member(member)
    later = worker.model_copy(update={"seen_at": 6.0})
    await store.put_member(later)
    assert await store.list_members("run") == [gateway, others[0], later]
    await store.remove_member("run", "runner", "a")
    await store.remove_member("run", "runner", "nobody")
    assert await store.list_members("run") == [gateway, later]
    assert await store.list_members("nothing") == []


async def test_an_alert_counts_once(store: Store) -> None:
    first = Alert(run_id="run", id="collapse/3", rule="reward_collapse", message="fell: \ud83d", step=3)
    second = Alert(run_id="run", id="disk", rule="disk", level="critical", message="full", created_at=1.0)
    assert await store.add_alerts([first, second]) == 2
    assert await store.add_alerts([first.model_copy(update={"message": "again"})]) == 0
    assert await store.add_alerts([]) == 0
    known = await store.list_alerts("run")
    assert [alert.id for alert in known] == ["collapse/3", "disk"]
    assert known[1] == second
    assert known[0].message.startswith("fell: ")
    assert await store.list_alerts("nothing") == []


async def test_half_a_surrogate_pair_is_kept_as_a_question_mark_in_remarks_and_refused_in_names(
    store: Store,
) -> None:
    half = "half \ud83e"
    await store.enqueue([rollout("a", max_attempts=1)])
    attempt = await lease_one(store)
    version = ResourceVersion(run_id="run", name="p", version=1, kind="prompt", uri=half)
    with pytest.raises(DataError, match=r"Call\.agent .*holds half a surrogate pair"):
        await store.add_call(call("c", attempt).model_copy(update={"agent": half}))
    with pytest.raises(DataError, match=r"ResourceVersion\.uri .*holds half a surrogate pair"):
        await store.put_resource(version)
    ended = await store.finish(attempt, error=half)
    again = await store.finish(attempt, error=half)
    (kept,) = await store.get_rollouts(["a"])
    assert ended.error == again.error == kept.error == "half ?"
