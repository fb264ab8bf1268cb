"""A token opens what its scope says, of its own run, until it expires; and a refusal changes nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lightning_core.api.access import RunGrant, issue, server_secret
from lightning_core.errors import ConfigError
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Rollout, Status
from lightning_core.stores.sqlite import MemoryStore
from tests.api.conftest import RUN, SECRET, Desk, error, good, open_desk, rollout

ONE = {"rollout_ids": ["a"]}
REWARD = {"rewards": [{"rollout_id": "a", "attempt": 1, "value": 1.0}]}
MEMBER = {"run_id": "run", "role": "runner", "name": "w1"}
OPENED: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/rollouts", {"rollouts": [rollout("run:new")]}, {"client"}),
    ("POST", "/tasks", {"run_id": "run", "tasks": [{"input": {}}]}, {"client"}),
    ("GET", "/rollouts?run_id=run", None, {"client"}),
    ("GET", "/rollouts/a", None, {"client"}),
    ("POST", "/rollouts/wait", ONE, {"client"}),
    ("POST", "/rollouts/cancel", ONE, set()),
    ("POST", "/leases", {"worker": "w"}, {"worker"}),
    ("POST", "/leases/heartbeat", {"keys": []}, {"worker"}),
    ("POST", "/leases/release", {"keys": []}, {"worker"}),
    ("POST", "/leases/reclaim", {"worker": "w"}, set()),
    ("GET", "/leases?run_id=run", None, {"worker"}),
    ("GET", "/leases/cancelled?worker=w", None, {"worker"}),
    ("POST", "/rollouts/read", ONE, {"client"}),
    ("GET", "/counts?run_id=run", None, {"client"}),
    ("GET", "/secrets?run_id=run", None, set()),
    ("GET", "/rewards?rollout_id=a", None, {"client"}),
    ("GET", "/events?rollout_id=a", None, {"client"}),
    ("GET", "/calls?rollout_id=a", None, {"client"}),
    ("POST", "/rewards", REWARD, set()),
    ("GET", "/credited?rollout_id=a", None, {"client"}),
    ("POST", "/credited", {"credited": [{"rollout_id": "a", "attempt": 1, "call_id": "c"}]}, set()),
    ("GET", "/runs", None, {"client"}),
    ("GET", "/runs/run", None, {"client"}),
    ("PUT", "/runs", {"id": "run"}, set()),
    ("GET", "/resources?run_id=run", None, {"client"}),
    ("PUT", "/resources", {"run_id": "run", "version": 1, "uri": None}, set()),
    ("GET", "/metrics?run_id=run", None, {"client"}),
    ("PUT", "/metrics", {"run_id": "run", "step": 1, "values": {"loss": 1.0}}, set()),
    ("GET", "/members?run_id=run", None, {"client"}),
    ("PUT", "/members", MEMBER, {"worker"}),
    ("PUT", "/members", {**MEMBER, "role": "gateway"}, set()),
    ("DELETE", "/members?run_id=run&role=runner&name=w1", None, {"worker"}),
    ("GET", "/alerts?run_id=run", None, {"client"}),
    ("POST", "/alerts", {"alerts": [{"run_id": "run", "id": "a", "rule": "r", "message": "m"}]}, set()),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "scopes"), OPENED, ids=[f"{method} {path}" for method, path, *_ in OPENED]
)
async def test_a_scope_opens_what_it_says_and_an_admin_s_everything_of_its_run(
    method: str, path: str, body: Any, scopes: set[str]
) -> None:
    async with open_desk(MemoryStore(), listening=False) as desk:
        await desk.store.enqueue([Rollout.model_validate(rollout("a"))])
        for name in ("", "lt-no.token", "la-no.token", "expired"):
            error(await desk.ask(method, path, body, scope=name), 401, "invalid_token")
        for scope in ("worker", "client"):
            answer = await desk.ask(method, path, body, scope=scope)
            assert answer.status_code == (200 if scope in scopes else 403), answer.text
        for name in ("admin", "all admin"):
            assert (await desk.ask(method, path, body, scope=name)).status_code == 200
        answer = await desk.ask(method, path, body, scope="other admin")
        if "run_id" not in path and (
            "/leases" in path or (path == "/runs" and method == "GET")
        ):  # these name no run: it is the token's own
            assert answer.status_code == 200
        else:
            assert "'run'" in error(answer, 403, "forbidden")["message"]


async def test_a_token_of_one_run_sees_that_run_alone(desk: Desk) -> None:
    await desk.post(
        "/rollouts", {"rollouts": [rollout("a"), rollout("b", run_id="other")]}, scope="all admin"
    )
    assert [one["id"] for one in (await desk.get("/runs"))["runs"]] == ["run"]
    assert [one["id"] for one in (await desk.get("/runs", scope="all client"))["runs"]] == ["other", "run"]
    for method, path, body in (
        ("GET", "/rollouts?run_id=other", None),
        ("GET", "/rollouts/b", None),
        ("GET", "/rewards?rollout_id=a&rollout_id=b", None),
        ("POST", "/rollouts/wait", {"rollout_ids": ["a", "b"]}),
        ("POST", "/rollouts/cancel", {"rollout_ids": ["a", "b"]}),
        ("POST", "/rollouts", {"rollouts": [rollout("run:c"), rollout("other:d", run_id="other")]}),
    ):
        assert "'other'" in error(await desk.ask(method, path, body), 403, "forbidden")["message"]
    assert [one.status for one in await desk.store.find_rollouts("run")] == [Status.QUEUED]


async def test_a_client_takes_no_id_that_another_run_may_want(desk: Desk) -> None:
    for scope in ("client", "all client"):
        for name in ("other-t0-0-0", "other:x0-t-0", "run", "run-t0-0-0"):
            body = {"rollouts": [rollout("run:a"), rollout(name)]}
            problem = error(await desk.ask("POST", "/rollouts", body, scope=scope), 422, "invalid_value")
            assert problem["field"] == "rollouts[1].id"
            assert "must begin with 'run:'" in problem["message"]
    assert await desk.store.find_rollouts("run") == []
    for name in ("run:a", ""):
        answer = await desk.ask("PUT", "/runs", {"id": name}, scope="all admin")
        assert error(answer, 422, "invalid_value")["field"] == "id"
    tasks = {"run_id": "run", "tasks": [{"input": {}}]}
    (name,) = (await desk.post("/tasks", tasks, scope="client"))["rollout_ids"]
    assert name.startswith("run:")


async def test_a_worker_speaks_only_of_what_it_holds(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a"), rollout("b")]})
    a, b = await desk.lease(limit=2)
    event = {"kind": "tool", "id": "t", "agent": "w", "name": "n", "started_at": 1.0, "ended_at": 2.0}
    call = {"id": "c", "agent": "w", "trained": False, "endpoint": "e", "started_at": 1.0, "ended_at": 2.0}
    for path, name, record in (
        ("/rewards", "rewards", {"value": 1.0}),
        ("/events", "events", event),
        ("/calls", "calls", call),
    ):
        for address, keys in (
            (("a", 1), []),
            (("a", 1), [b["key"]]),
            (("a", 2), [a["key"]]),
        ):
            body = {name: [{**record, "rollout_id": address[0], "attempt": address[1]}], "keys": keys}
            error(await desk.ask("POST", path, body, scope="worker"), 403, "forbidden")
        body = {name: [{**record, "rollout_id": "a", "attempt": 1}], "keys": [b["key"], a["key"]]}
        assert await desk.post(path, body, scope="worker") == {"stored": 1}
    await desk.post("/leases/finish", {"key": b["key"], "reward": 1.0}, scope="worker")
    for path, name, record in (
        ("/rewards", "rewards", {"value": 1.0}),
        ("/events", "events", event),
        ("/calls", "calls", call),
    ):
        body = {name: [{**record, "rollout_id": "b", "attempt": 1}], "keys": [b["key"]]}
        error(await desk.ask("POST", path, body, scope="worker"), 409, "lease_lost")
    assert len((await desk.store.get_rewards(["b"]))["b"]) == 1


async def test_no_token_opens_what_another_kind_does(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a")]})
    (lease,) = await desk.lease()
    of_rollout = Tokens(bytes.fromhex(SECRET)).issue(Rollout.model_validate(rollout("a")), 1)
    for wrong in (lease["key"], of_rollout, "la-" + of_rollout[3:], "la-" + lease["key"][3:]):
        error(await desk.ask("GET", "/runs", scope=wrong), 401, "invalid_token")


async def test_only_an_admin_names_an_attempt_without_the_key_of_its_lease(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a")]})
    await desk.lease()
    key = {"rollout_id": "a", "attempt": 1, "worker": "w1"}
    for path, body in (
        ("/leases/heartbeat", {"keys": [key]}),
        ("/leases/finish", {"key": key, "reward": 1.0}),
        ("/leases/release", {"keys": [key]}),
        ("/rewards", {**REWARD, "keys": [key]}),
    ):
        error(await desk.ask("POST", path, body, scope="worker"), 403, "forbidden")
    assert await desk.post("/leases/heartbeat", {"keys": [key]}) == {"held": [key], "lost": []}


async def test_any_change_makes_a_token_worthless(desk: Desk) -> None:
    token = desk.tokens["client"]
    for place in range(0, len(token), 7):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        error(await desk.ask("GET", "/runs", scope=changed), 401, "invalid_token")


async def test_a_run_with_a_new_secret_has_no_valid_tokens(desk: Desk) -> None:
    await desk.store.put_run(RUN.model_copy(update={"secret": "f" * 64}))
    error(await desk.ask("GET", "/runs"), 401, "invalid_token")
    await desk.store.put_run(RUN.model_copy(update={"secret": ""}))
    assert "no secret" in error(await desk.ask("GET", "/runs"), 401, "invalid_token")["message"]


async def test_a_server_without_a_secret_takes_no_tokens_for_all_runs() -> None:
    async with open_desk(MemoryStore(), secret=None, listening=False) as desk:
        problem = error(await desk.ask("GET", "/runs", scope="all admin"), 401, "invalid_token")
        assert "LIGHTNING_API_SECRET" in problem["message"]
        assert (await desk.ask("GET", "/runs")).status_code == 200
    with pytest.raises(ConfigError, match="LIGHTNING_API_SECRET is too short"):
        server_secret("short")
    assert server_secret("") is server_secret(None) is None


async def test_a_run_s_secret_is_made_and_kept_and_told_by_one_address_alone(desk: Desk) -> None:
    for secret in ("not hex", "abcd"):
        answer = await desk.ask("PUT", "/runs", {"id": "third", "secret": secret}, scope="all admin")
        assert error(answer, 422, "invalid_value")["field"] == "secret"
    made = await desk.ask("PUT", "/runs", {"id": "third", "config": {"steps": 3}}, scope="all admin")
    assert (made.status_code, made.json()["config"]) == (200, {"steps": 3})
    stored = await desk.store.find_run("third")
    assert stored is not None
    assert len(stored.secret) == 64
    again = await desk.ask("PUT", "/runs", {"id": "third", "status": "finished"}, scope="all admin")
    after = await desk.store.find_run("third")
    assert after is not None
    assert after == stored.model_copy(update={"status": "finished"})
    listed = await desk.ask("GET", "/runs", scope="all client")
    shown = good(await desk.ask("GET", "/secrets", scope="all admin"))["runs"]
    assert {one["id"]: one["secret"] for one in shown}["third"] == stored.secret
    for answer in (made, again, listed):
        assert "secret" not in answer.text
        assert stored.secret not in answer.text


async def test_a_call_that_the_gateway_recorded_is_not_replaced_by_a_worker(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a")]})
    (lease,) = await desk.lease()
    policy = {
        "id": "c",
        "rollout_id": "a",
        "attempt": 1,
        "agent": "w",
        "trained": True,
        "prompt_ids": [1, 2**32 - 1],
        "choices": [{"completion_ids": [7], "logprobs": [-0.5]}],
        "started_at": 1.0,
        "ended_at": 2.0,
    }
    body = {"calls": [policy], "keys": [lease["key"]]}
    problem = error(await desk.ask("POST", "/calls", body, scope="worker"), 422, "invalid_value")
    assert problem["field"] == "calls[0].endpoint"
    await desk.post("/calls", body, scope="admin")
    body["calls"] = [{**policy, "endpoint": "https://elsewhere"}]
    error(await desk.ask("POST", "/calls", body, scope="worker"), 403, "forbidden")
    (kept,) = (await desk.get("/calls", rollout_id="a"))["calls"]["a"]
    assert (kept["prompt_ids"], kept["endpoint"]) == ([1, 2**32 - 1], None)


async def test_a_stranger_does_not_learn_which_runs_there_are(desk: Desk) -> None:
    said = set()
    for run_id in ("run", "other", "unknown", "", "\x00"):
        forged = issue(b"a secret of their own", RunGrant("admin", run_id, time.time() + 60))
        said.add((await desk.ask("GET", "/runs", scope=forged)).text)
    await desk.store.put_run(RUN.model_copy(update={"secret": ""}))
    forged = issue(b"a secret of their own", RunGrant("admin", "run", time.time() + 60))
    said.add((await desk.ask("GET", "/runs", scope=forged)).text)
    assert len(said) == 1, said


async def test_a_worker_renews_and_ends_its_own_membership_alone(desk: Desk) -> None:
    own = await desk.ask("PUT", "/members", {**MEMBER, "data": {"slots": 1}}, scope="worker")
    key = good(own)["key"]
    of_another = good(await desk.ask("PUT", "/members", {**MEMBER, "name": "w2"}, scope="worker"))["key"]
    for wrong in (None, "", of_another, "lm-forged.x"):
        body = {**MEMBER, "data": {"slots": 0}, "key": wrong}
        problem = error(await desk.ask("PUT", "/members", body, scope="worker"), 403, "forbidden")
        assert "'w1'" in problem["message"]
        query = MEMBER if wrong is None else {**MEMBER, "key": wrong}
        error(await desk.ask("DELETE", "/members", scope="worker", **query), 403, "forbidden")
    (w1, _) = await desk.store.list_members("run")
    assert w1.data == {"slots": 1}
    again = good(await desk.ask("PUT", "/members", {**MEMBER, "key": key}, scope="worker"))
    assert (again["key"], again["started_at"]) == (key, w1.started_at)
    good(await desk.ask("DELETE", "/members", scope="worker", **MEMBER, key=key))
    assert [member.name for member in await desk.store.list_members("run")] == ["w2"]


async def test_a_name_whose_worker_died_is_free_and_its_old_key_worthless(desk: Desk) -> None:
    old = good(
        await desk.ask("PUT", "/members", {**MEMBER, "seen_at": 1.0, "started_at": 1.0}, scope="worker")
    )
    new = good(await desk.ask("PUT", "/members", MEMBER, scope="worker"))
    assert new["key"] != old["key"]
    error(await desk.ask("DELETE", "/members", scope="worker", **MEMBER, key=old["key"]), 403, "forbidden")
    good(await desk.ask("DELETE", "/members", **MEMBER))  # an admin needs none
    assert await desk.store.list_members("run") == []
