"""An operation over HTTP, with a token of one run, leaves the records that the same does to a store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning_core.records.types import (
    Alert,
    Call,
    Choice,
    Credited,
    Member,
    Metrics,
    ResourceVersion,
    Reward,
    Rollout,
    Sampling,
    Span,
    Task,
    ToolEvent,
)
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from tests.api.conftest import OTHER, RUN, Desk, every_kind, open_desk

LONG = 60.0


def plain(records: Sequence[Any]) -> list[Any]:
    return [record.model_dump(mode="json") for record in records]


def rollout(name: str, **fields: Any) -> Rollout:
    given: dict[str, Any] = {
        "run_id": "run",
        "group_id": "g",
        "step": 0,
        "task": Task(input={"q": name}),
        "created_at": 5.0,
    }
    return Rollout(id=name, **(given | fields))


async def play(on: Store) -> list[object]:
    """One of everything, in an order that a run might have; what the operations said."""
    task = Task(id="t", input={"q": "für", "n": [1, 2.5, None, True, {"deep": "日本"}]}, split="validation")
    hot = rollout("b", task=task, split="validation", sampling=Sampling(temperature=0.0), priority=2, step=7)
    said: list[object] = [
        await on.enqueue([rollout("a", max_attempts=2), hot, rollout("c"), rollout("d"), rollout("e")]),
        await on.enqueue([rollout("a"), rollout("f", policy_version=3)]),
    ]
    b, a = await on.lease("w1", 2, LONG)
    (c,) = await on.lease("w2", 1, LONG)
    call = Call(
        id="call",
        rollout_id="b",
        attempt=1,
        agent="writer",
        trained=True,
        request={"messages": [{"role": "user", "content": "hi"}]},
        prompt_ids=[0, 1, 2**32 - 1],
        choices=[
            Choice(completion_ids=[5, 6], logprobs=[-0.5, -1.0], finish_reason="stop"),
            Choice(index=1, message={"content": None}),
        ],
        started_at=1.5,
        ended_at=2.5,
        policy_version=4,
        response_id="resp",
    )
    await on.add_call(call)
    await on.add_call(call.model_copy(update={"id": "seen", "endpoint": "https://x", "trained": False}))
    tool = ToolEvent(
        id="t", rollout_id="b", attempt=1, agent="writer", name="search", started_at=1.0, ended_at=2.0
    )
    span = Span(
        id="0" * 16, trace_id="1" * 32, rollout_id="b", attempt=1, name="s", started_at=0.5, ended_at=3.0
    )
    await on.add_events([tool, span])
    await on.add_events([tool.model_copy(update={"result": "found"})])
    first = Reward(rollout_id="b", attempt=1, value=0.25, call_id="call", kind="intermediate", created_at=1.0)
    named = first.model_copy(update={"id": "one", "value": 1.0, "reason": "ok"})
    await on.add_rewards([first, named])
    await on.add_rewards([named])
    await on.add_credited([Credited(rollout_id="b", attempt=1, call_id="call", advantage=-0.5, weight=0.01)])
    said.append([one.rollout.id for one in await on.heartbeat([a, b, c], LONG)])
    said.append((await on.finish(a, error="broke")).status)
    said.append((await on.finish(b, reward=0.5)).reward)
    said.append((await on.finish(b, reward=0.5)).reward)
    await on.release([c])
    said.append(await on.cancel(["d", "b"]))
    again = await on.lease("w3", 9, LONG)
    said.append([(one.rollout.id, one.number) for one in again])
    said.append((await on.finish(again[0], error="again", reward=-1.0)).status)
    said.append((await on.finish(again[1])).status)
    said.append([one.rollout.id for one in await on.heartbeat(again, LONG)])
    for version in (1, 2):
        await on.put_resource(
            ResourceVersion(run_id="run", version=version, uri=None, metrics={"r": 0.5}, created_at=3.0)
        )
    await on.put_resource(
        ResourceVersion(run_id="run", name="hint", version=1, kind="prompt", uri="Be short.", created_at=1.0)
    )
    await on.put_metrics(Metrics(run_id="run", step=2, values={"loss": 0.5, "gap": math.nan}, created_at=1.0))
    await on.put_metrics(Metrics(run_id="run", step=1, values={"loss": 1.5}, created_at=1.0))
    await on.put_member(Member(run_id="run", role="runner", name="w1", started_at=1.0, seen_at=2.0))
    alert = Alert(run_id="run", id="x", rule="disk", message="full", step=3, created_at=1.0)
    said.append(await on.add_alerts([alert, alert.model_copy(update={"message": "again"})]))
    return said


async def snapshot(store: Store) -> list[object]:
    """All that a store holds, without the times of day at which it came."""
    ids = list("abcdef")
    rollouts = [one.model_copy(update={"finished_at": None}) for one in await store.find_rollouts("run")]
    rewards = {
        name: [one if one.created_at == 1.0 else one.model_copy(update={"created_at": 0.0}) for one in given]
        for name, given in (await store.get_rewards(ids)).items()
    }
    return [
        rollouts,
        rewards,
        await store.get_calls(ids),
        await store.get_events(ids),
        await store.get_credited(ids),
        [await store.list_resources("run", name) for name in ("policy", "hint")],
        [(one.step, repr(one.values), one.created_at) for one in await store.list_metrics("run")],
        await store.list_members("run"),
        await store.list_alerts("run"),
        await store.list_runs(),
    ]


@every_kind
async def test_the_same_operations_leave_the_same_records(store: Store) -> None:
    direct = MemoryStore()
    for run in (RUN, OTHER):
        await direct.put_run(run)
    async with open_desk(store) as desk, desk.remote() as remote:
        assert await play(remote) == await play(direct)
    there, here = await snapshot(store), await snapshot(direct)
    for remote, local in zip(there, here, strict=True):
        assert remote == local


@every_kind
async def test_what_is_stored_is_read_back_by_rest_as_it_is(desk: Desk) -> None:
    await play(desk.store)
    ids = list("abcdef")
    wanted = await desk.store.get_calls(ids)
    got = (await desk.get("/calls", rollout_id=ids))["calls"]
    assert {name: [Call.model_validate(one) for one in calls] for name, calls in got.items()} == wanted
    rewards = (await desk.get("/rewards", rollout_id=ids))["rewards"]
    read = {name: [Reward.model_validate(one) for one in given] for name, given in rewards.items()}
    assert read == await desk.store.get_rewards(ids)
    events = (await desk.get("/events", rollout_id=ids))["events"]["b"]
    assert events == plain((await desk.store.get_events(["b"]))["b"])
    metrics = (await desk.get("/metrics", run_id="run"))["metrics"]
    assert [(one["step"], one["values"]) for one in metrics] == [
        (1, {"loss": 1.5}),
        (2, {"loss": 0.5, "gap": "NaN"}),
    ]
    assert await desk.get("/metrics", run_id="run", limit=1) == {"metrics": metrics[:1], "next": "1"}
    for path, name, wanted_records in (
        ("/resources", "resources", await desk.store.list_resources("run")),
        ("/members", "members", await desk.store.list_members("run")),
        ("/alerts", "alerts", await desk.store.list_alerts("run")),
    ):
        assert (await desk.get(path, run_id="run"))[name] == plain(wanted_records)
    assert (await desk.get("/runs/run"))["created_at"] == RUN.created_at
    await desk.ask("DELETE", "/members", run_id="run", role="runner", name="w1")
    assert await desk.store.list_members("run") == []


async def test_half_a_letter_that_a_model_wrote_is_read_all_the_same() -> None:
    async with open_desk(MemoryStore(), listening=False) as desk:
        await desk.store.enqueue([rollout("a")])
        await desk.store.lease("w", 1, LONG)
        message: dict[str, Any] = {"role": "assistant", "content": "\ud83d"}
        call = Call(
            id="c",
            rollout_id="a",
            attempt=1,
            agent="w",
            trained=True,
            choices=[Choice(message=message, completion_ids=[1], logprobs=[-math.inf])],
            started_at=1.0,
            ended_at=2.0,
        )
        await desk.store.add_call(call)
        (read,) = (await desk.get("/calls", rollout_id="a"))["calls"]["a"]
        assert read["choices"][0]["message"] == message
        assert read["choices"][0]["logprobs"] == ["-Infinity"]
