"""Laws for clients: they enqueue, look, wait and cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lightning_core.records.types import Rollout, Status
from tests.api.conftest import Desk, error, every_kind, rollout


def names(rollouts: list[dict[str, object]]) -> list[object]:
    return [one["id"] for one in rollouts]


async def test_rollouts_are_enqueued_once_however_often_they_are_sent(desk: Desk) -> None:
    ids = ["run:a", "run:b/ö"]
    body = {"rollouts": [rollout(name) for name in ids]}
    assert await desk.post("/rollouts", body, scope="client") == {"new": 2, "rollout_ids": ids}
    assert (await desk.post("/rollouts", body))["new"] == 0
    (a, b) = await desk.store.find_rollouts("run")
    assert (a.task.input, a.status, b.id) == ({"q": "run:a"}, Status.QUEUED, "run:b/ö")
    assert await desk.get("/rollouts/run:b%2F%C3%B6") == b.model_dump(mode="json")


async def test_tasks_become_groups_of_rollouts_under_ids_that_follow_from_them(desk: Desk) -> None:
    tasks = [{"input": {"q": 1}}, {"input": {"q": 2}, "split": "validation"}, {"input": {"q": 1}}]
    body = {"run_id": "run", "tasks": tasks, "group_size": 2, "step": 3, "sampling": {"temperature": 0.5}}
    made = await desk.post("/tasks", body, scope="client")
    assert (made["new"], len(made["rollout_ids"])) == (4, 4)
    assert await desk.post("/tasks", body) == {**made, "new": 0}
    assert (await desk.post("/tasks", {**body, "step": 4}))["new"] == 4
    rollouts = await desk.store.find_rollouts("run", step=3)
    assert [one.id for one in rollouts] == made["rollout_ids"]
    assert len({one.group_id for one in rollouts}) == 2
    assert [one.split for one in rollouts] == ["train", "train", "validation", "validation"]
    assert {one.sampling.temperature for one in rollouts} == {0.5}


async def test_the_same_tasks_in_another_way_are_rollouts_of_their_own(desk: Desk) -> None:
    body: dict[str, Any] = {"run_id": "run", "tasks": [{"input": {"q": 1}}]}
    ways: list[dict[str, Any]] = [
        {},
        {"policy_version": 0},
        {"policy_version": 1},
        {"sampling": {"top_p": 0.5}},
    ]
    ids = [(await desk.post("/tasks", {**body, **way}))["rollout_ids"][0] for way in ways]
    usual = {"policy_version": None, "sampling": {"temperature": 1}}
    assert await desk.post("/tasks", {**body, **usual}) == {"new": 0, "rollout_ids": ids[:1]}
    found = await desk.store.find_rollouts("run")
    assert [one.id for one in found] == ids
    assert len({one.group_id for one in found}) == 4
    assert [one.policy_version for one in found] == [None, 0, 1, None]


async def test_two_tasks_under_one_id_are_refused(desk: Desk) -> None:
    tasks = [{"id": "t", "input": {"q": 1}}, {"id": "t", "input": {"q": 1}}, {"id": "t", "input": {"q": 2}}]
    answer = await desk.ask("POST", "/tasks", {"run_id": "run", "tasks": tasks}, scope="client")
    assert error(answer, 422, "invalid_value")["field"] == "tasks[2].id"
    assert await desk.store.find_rollouts("run") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_have_everything_once_and_in_order(desk: Desk, limit: int) -> None:
    ids = [f"r{place}" for place in range(7)]
    await desk.post("/rollouts", {"rollouts": [rollout(name) for name in ids]})
    found: list[object] = []
    query: dict[str, Any] = {"run_id": "run", "limit": limit}
    while True:
        page = await desk.get("/rollouts", **query)
        assert len(page["rollouts"]) <= limit
        found += names(page["rollouts"])
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert found == ids
    error(await desk.ask("GET", "/rollouts", run_id="run", after="nowhere"), 404, "not_found")


async def test_a_page_is_followed_though_its_last_entry_no_longer_fits(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout(name) for name in "abcd"]})
    query: dict[str, Any] = {"run_id": "run", "status": "queued", "limit": 2}
    first = await desk.get("/rollouts", **query)
    assert (names(first["rollouts"]), first["next"]) == (["a", "b"], "b")
    await desk.post("/rollouts/cancel", {"rollout_ids": ["b", "c"]})
    rest = await desk.get("/rollouts", **query, after="b")
    assert (names(rest["rollouts"]), rest["next"]) == (["d"], None)


async def test_rollouts_are_found_by_step_split_and_status(desk: Desk) -> None:
    await desk.post(
        "/rollouts", {"rollouts": [rollout("a"), rollout("b", step=1), rollout("c", split="validation")]}
    )
    await desk.post("/rollouts/cancel", {"rollout_ids": ["a"]})
    for query, wanted in (
        ({"step": 0}, ["a", "c"]),
        ({"split": "validation"}, ["c"]),
        ({"status": "cancelled"}, ["a"]),
        ({"status": "queued", "step": 1}, ["b"]),
    ):
        assert names((await desk.get("/rollouts", run_id="run", **query))["rollouts"]) == wanted


async def test_what_is_enqueued_has_not_been_tried(desk: Desk) -> None:
    for fields, field in (
        ({"status": "succeeded"}, "rollouts[1].status"),
        ({"attempts": 1}, "rollouts[1].status"),
        ({"reward": 1.0}, "rollouts[1].reward"),
        ({"max_attempts": 0}, "rollouts[1].max_attempts"),
    ):
        body = {"rollouts": [rollout("a"), rollout("b", **fields)]}
        assert error(await desk.ask("POST", "/rollouts", body), 422, "invalid_value")["field"] == field
    unknown = {"rollouts": [rollout("run:a"), rollout("nobody's:b", run_id="nobody's")]}
    answer = await desk.ask("POST", "/rollouts", unknown, scope="all client")
    assert "nobody's" in error(answer, 404, "not_found")["message"]
    assert await desk.store.find_rollouts("run") == []


async def test_waiting_ends_when_all_are_finished(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a"), rollout("b")]})
    body = {"rollout_ids": ["b", "a"], "wait": 60}
    waiting = asyncio.create_task(desk.post("/rollouts/wait", body, scope="client"))
    (lease,) = await desk.lease()
    await desk.post("/leases/finish", {"key": lease["key"], "reward": 0.5}, scope="worker")
    assert not waiting.done()
    assert await desk.post("/rollouts/cancel", {"rollout_ids": ["a", "b"]}) == {"cancelled": 1}
    async with asyncio.timeout(30):
        finished = await waiting
    assert finished["done"] is True
    assert [(one["id"], one["status"]) for one in finished["rollouts"]] == [
        ("b", "cancelled"),
        ("a", "succeeded"),
    ]


async def test_waiting_gives_what_is_finished_when_the_time_is_up(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a"), rollout("b")]})
    await desk.post("/rollouts/cancel", {"rollout_ids": ["b"]})
    finished = await desk.post("/rollouts/wait", {"rollout_ids": ["a", "b"], "wait": 0.05})
    assert (finished["done"], names(finished["rollouts"])) == (False, ["b"])


async def test_an_unknown_rollout_is_named(desk: Desk) -> None:
    for method, path, body in (
        ("GET", "/rollouts/nobody", None),
        ("POST", "/rollouts/wait", {"rollout_ids": ["nobody"]}),
        ("POST", "/rollouts/cancel", {"rollout_ids": ["nobody"]}),
        ("GET", "/calls?rollout_id=nobody", None),
        ("GET", "/rewards?rollout_id=nobody", None),
        ("GET", "/events?rollout_id=nobody", None),
    ):
        assert "'nobody'" in error(await desk.ask(method, path, body), 404, "not_found")["message"]


async def test_a_request_for_more_rollouts_than_one_may_enqueue_is_refused(desk: Desk) -> None:
    tasks = [{"input": {"q": number}} for number in range(10)]
    answer = await desk.ask("POST", "/tasks", {"run_id": "run", "tasks": tasks, "group_size": 1001})
    problem = error(answer, 422, "invalid_value")
    assert problem["field"] == "group_size"
    assert "for 10 tasks: that is more than the 10000 rollouts of one request" in problem["message"]
    assert await desk.store.find_rollouts("run") == []
    allowed = {"run_id": "run", "tasks": tasks, "group_size": 1000}
    assert (await desk.post("/tasks", allowed, scope="client"))["new"] == 10_000


@every_kind
@pytest.mark.parametrize("wanted", [{}, {"status": "queued"}, {"step": 0}])
async def test_a_page_asks_the_store_for_no_more_than_it_holds(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout(f"r{number:03}") for number in range(300)]})
    read: list[int] = []
    find = desk.store.find_rollouts

    async def counted(*arguments: Any, **options: Any) -> list[Rollout]:
        found = await find(*arguments, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(desk.store, "find_rollouts", counted)
    page = await desk.get("/rollouts", run_id="run", limit=10, after="r100", **wanted)
    assert names(page["rollouts"]) == [f"r{number:03}" for number in range(101, 111)]
    assert sum(read) <= 11
