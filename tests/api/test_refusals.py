"""Unusable input is refused in words, with the field named, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from lightning_core.errors import StoreError
from lightning_core.gateway.limits import Limits
from lightning_core.records.types import Rollout
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.texts.json_text import DEPTH, EXACT_JSON
from tests.api.conftest import Desk, error, good, open_desk, rollout
from tests.gateway.raw import exchange, head

LARGEST, SMALLEST = f"less than or equal to {2**63 - 1}", f"greater than or equal to {-(2**63) + 1}"


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("/rollouts", {}, "rollouts", "Field required"),
        ("/rollouts", {"rollouts": []}, "rollouts", "at least 1 item"),
        ("/rollouts", {"rollouts": [rollout("a", step="x")]}, "rollouts[0].step", "valid integer"),
        (
            "/rollouts",
            {"rollouts": [rollout("a", step=2**63)]},
            "rollouts[0].step",
            LARGEST,
        ),
        ("/rollouts", {"rollouts": [rollout("a", setp=1)]}, "rollouts[0].setp", "not permitted"),
        (
            "/rollouts",
            {"rollouts": [rollout("a", created_at="nan")]},
            "rollouts[0].created_at",
            "finite number",
        ),
        ("/rollouts", [], None, "the body"),
        ("/tasks", {"run_id": "run", "tasks": [{"input": 7}]}, "tasks[0].input", "dictionary"),
        (
            "/tasks",
            {"run_id": "run", "tasks": [{"input": {}}], "step": -(2**63)},
            "step",
            SMALLEST,
        ),
        ("/leases", {"worker": ""}, "worker", "at least 1 character"),
        ("/leases", {"worker": "w", "wait": 1e9}, "wait", "less than or equal to 60"),
        ("/leases", {"worker": "w", "seconds": 0}, "seconds", "greater than 0"),
        ("/leases", {"worker": "w", "limit": 1.5}, "limit", "valid integer"),
        ("/leases/finish", {"key": "k", "rewrd": 1}, "rewrd", "not permitted"),
        ("/rewards", {"rewards": [{"rollout_id": "a", "attempt": 1}]}, "rewards[0].value", "Field required"),
        (
            "/rewards",
            {"rewards": [{"rollout_id": "a", "attempt": 1, "value": "NaN"}]},
            "rewards[0].value",
            "no finite number",
        ),
        ("/events", {"events": [{"kind": "tool"}]}, "events[0].tool.id", "Field required"),
        ("/alerts", {"alerts": [{"run_id": "run"}]}, "alerts[0].id", "Field required"),
    ],
)
async def test_bad_input_is_refused_by_field(path: str, body: Any, field: str | None, words: str) -> None:
    async with open_desk(MemoryStore(), listening=False) as desk:
        problem = error(await desk.ask("POST", path, body), 422, "invalid_value")
        assert problem["field"] == field
        assert words in problem["message"]
        assert await desk.store.find_rollouts("run") == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"\xff",
        b'{"rollouts": NaN}',
        b"[" * 100_000,
    ],
)
async def test_what_is_no_json_is_refused_in_words(body: bytes) -> None:
    async with open_desk(MemoryStore(), listening=False) as desk:
        answer = await desk.ask("POST", "/rollouts", body)
        problem = error(answer, 422, "invalid_value") if body == b"" else error(answer, 400, "invalid_json")
        assert "body" in problem["message"] or problem["field"] == "rollouts"


@pytest.mark.parametrize(("name", "value"), [("reward", "nan"), ("reward", "-inf"), ("reward", -1.7e308)])
async def test_a_reward_that_is_no_finite_number_does_not_end_an_attempt(
    desk: Desk, name: str, value: str | float
) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a")]})
    (lease,) = await desk.lease()
    answer = await desk.ask("POST", "/leases/finish", {"key": lease["key"], name: value}, scope="worker")
    assert "finite" in error(answer, 422, "invalid_value")["message"]
    assert good(await desk.ask("POST", "/leases/heartbeat", {"keys": [lease["key"]]}))["held"]


async def test_a_reward_that_is_too_large_is_refused_and_none_of_the_request_is_stored(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a")]})
    (lease,) = await desk.lease()
    rewards = [{"rollout_id": "a", "attempt": 1, "value": value} for value in (1.0, 1e10)]
    body = {"rewards": rewards, "keys": [lease["key"]]}
    answer = await desk.ask("POST", "/rewards", body, scope="worker")
    assert "'a' is not a finite number from -1e9 to 1e9" in error(answer, 422, "invalid_value")["message"]
    assert await desk.store.get_rewards(["a"]) == {"a": []}


async def test_a_token_id_is_a_number_that_an_engine_can_give(desk: Desk) -> None:
    await desk.post("/rollouts", {"rollouts": [rollout("a")]})
    call = {"id": "c", "rollout_id": "a", "attempt": 1, "agent": "w", "trained": True, "started_at": 1.0}
    for fields, field in (
        ({"prompt_ids": [1, -1]}, "calls[0].prompt_ids[1]"),
        ({"choices": [{"completion_ids": [2**32]}]}, "calls[0].choices[0].completion_ids[0]"),
    ):
        body = {"calls": [{**call, "ended_at": 2.0, **fields}]}
        assert error(await desk.ask("POST", "/calls", body), 422, "invalid_value")["field"] == field


@pytest.mark.parametrize("after", ["", "last", str(2**63 - 1), str(-(2**63)), "9" * 4000])
async def test_a_page_of_metrics_goes_on_after_a_step_alone(desk: Desk, after: str) -> None:
    answer = await desk.ask("GET", "/metrics", run_id="run", after=after)
    problem = error(answer, 422, "invalid_value")
    assert problem["field"] == "after"
    assert "give what the page before had as `next`" in problem["message"]
    assert good(await desk.ask("GET", "/metrics", run_id="run", after=str(2**63 - 2)))["metrics"] == []


async def test_unknown_addresses_and_methods_point_to_the_document(desk: Desk) -> None:
    assert "openapi.json" in error(await desk.ask("GET", "/nowhere"), 404, "unknown_address")["message"]
    assert "DELETE" in error(await desk.ask("DELETE", "/rollouts"), 405, "method_not_allowed")["message"]


async def test_a_body_that_is_too_long_is_refused_before_it_is_whole() -> None:
    async with open_desk(MemoryStore(), limits=Limits(body_bytes=1000)) as desk:
        body = {"rollouts": [rollout("a", task={"input": {"text": "x" * 2_000_000}})]}
        assert "1000 bytes" in error(await desk.ask("POST", "/rollouts", body), 413, "too_large")["message"]
        assert (await desk.post("/rollouts", {"rollouts": [rollout("a")]}))["new"] == 1


async def test_a_body_that_comes_whole_after_its_refusal_spoils_no_later_answer() -> None:
    async with open_desk(MemoryStore(), limits=Limits(body_bytes=1000)) as desk:
        address = urlsplit(desk.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        token, size = desk.tokens["admin"].encode(), 100_000
        head = b"POST /api/v1/rollouts HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token
        writer.write(head + b"\r\ncontent-length: %d\r\n\r\n" % size)
        assert b" 413 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}}")
        for _ in range(2):
            writer.write(b"x" * (size // 2))
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(b"GET /api/v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("token", ["", "authorization: Bearer la-no.token"])
async def test_a_stranger_is_refused_before_a_body_is_read(token: str) -> None:
    async with open_desk(MemoryStore()) as desk:
        for path in ("/rollouts", "/calls", "/leases"):
            answer = await exchange(
                desk.url, [head(f"/api/v1{path}", "content-length: 60000000", *filter(None, [token]))]
            )
            assert (answer.status, answer.code) == (401, "invalid_token")


async def test_a_body_that_is_nested_too_deep_is_refused_and_half_a_character_replaced() -> None:
    async with open_desk(MemoryStore(), listening=False) as desk:
        for depth in (DEPTH + 1, 1000, 100_000):
            task = b'{"run_id": "run", "tasks": [{"input": {"x": %b}}]}' % (b"[" * depth + b"]" * depth)
            error(await desk.ask("POST", "/tasks", task), 400, "invalid_json")
        await desk.ask("POST", "/tasks", rb'{"run_id": "run", "tasks": [{"input": {"x": "\ud83d"}}]}')
        assert [one.task.input for one in await desk.store.find_rollouts("run")] == [{"x": "\ufffd"}]


async def test_a_client_that_is_too_slow_is_told_so_and_holds_up_nobody() -> None:
    async with open_desk(MemoryStore(), limits=Limits(body_seconds=0.3)) as desk:
        answer = await _send(desk, [b"content-length: 100\r\n\r\n", b'{"rollouts": ['])
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"too_slow"' in answer
        assert (await desk.get("/health"))["status"] == "ok"


async def test_a_client_that_leaves_in_the_middle_of_its_body_has_changed_nothing() -> None:
    async with open_desk(MemoryStore()) as desk:
        await _send(desk, [b"content-length: 1000\r\n\r\n", b'{"rollouts": ['], listen=False)
        assert (await desk.get("/rollouts", run_id="run"))["rollouts"] == []


async def _send(desk: Desk, parts: Sequence[bytes], *, listen: bool = True) -> bytes:
    """Returns the server's answer to these bytes after the head of a POST."""
    address = urlsplit(desk.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    token = desk.tokens["admin"].encode()
    writer.write(b"POST /api/v1/rollouts HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token + b"\r\n")
    for part in parts:
        writer.write(part)
        await writer.drain()
    said = await reader.readuntil(b"}}") if listen else b""
    writer.close()
    await writer.wait_closed()
    return said


class AwayStore(MemoryStore):
    """A store whose server can't be reached just now."""

    away = False

    async def find_rollouts(self, *given: Any, **more: Any) -> list[Rollout]:
        if self.away:
            raise StoreError("the server at db:5432 does not answer")
        return await super().find_rollouts(*given, **more)


async def test_a_store_that_is_away_is_said_so_with_a_time_to_come_back() -> None:
    store = AwayStore()
    async with open_desk(store) as desk:
        store.away = True
        answer = await desk.ask("GET", "/rollouts", run_id="run")
        assert "db:5432" in error(answer, 503, "store_away")["message"]
        assert int(answer.headers["retry-after"]) >= 1
        store.away = False
        assert (await desk.get("/rollouts", run_id="run"))["rollouts"] == []


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        ("ll-\ud83e.x", 422, "invalid_value"),
        (5, 422, "invalid_value"),
        ({"rollout_id": "a"}, 422, "invalid_value"),
        ("ll-é.é", 401, "invalid_token"),
    ],
)
async def test_what_is_no_key_is_refused_by_its_name(desk: Desk, key: object, status: int, code: str) -> None:
    body = json.dumps({"keys": [key]}).encode()
    headers = {"authorization": f"Bearer {desk.tokens['worker']}", "content-type": EXACT_JSON}
    answer = await desk.web.post("/api/v1/leases/release", content=body, headers=headers)
    problem = error(answer, status, code)
    assert problem["field"] == ("keys[0]" if status == 422 else None)
