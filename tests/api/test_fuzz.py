"""No request whatever breaks the server: strange ones are refused, and say why."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_core.api.app import Api
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from tests.api.conftest import OTHER, RUN, SERVER_SECRET, Desk, error, rollout, tokens

DOCUMENT: dict[str, Any] = Api(MemoryStore()).app().openapi()
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in sorted(DOCUMENT["paths"].items())
    for method, operation in sorted(methods.items())
]
Asked = tuple[str, str, dict[str, Any], Any]
"""(method, path, query, body)"""
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 1e308, 0.5]),
    st.sampled_from(["", "nan", "inf", "\x00", "run", "ä/ö%2F", "a" * 300, "9" * 400]),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
)
KNOWN = st.sampled_from(["run", "other", "r0", "r1", "w1", "policy", "KEY"])
"""Ids in the store; KEY stands for the key of a lease."""


def values(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Makes values that fit the schema, more or less: now and then a part of one is something else."""
    fitting = st.deferred(lambda: _fitting(schema, depth))
    return st.integers(0, 60).flatmap(lambda roll: JUNK if roll == 0 else fitting)


def _fitting(schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        name = schema["$ref"].split("/")[-1]
        return JUNK if depth > 6 or name == "JsonValue" else values(SCHEMAS[name], depth + 1)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return st.one_of([values(one, depth + 1) for one in schema[either]])
    return _of_type(schema, depth)


def _of_type(schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "object" if "properties" in schema:
            needed = set(schema.get("required", ()))
            fields = {name: values(one, depth + 1) for name, one in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: one for name, one in fields.items() if name in needed},
                optional={name: one for name, one in fields.items() if name not in needed},
            )
        case "object":
            inner = schema.get("additionalProperties")
            of = values(inner, depth + 1) if isinstance(inner, dict) else JUNK
            return st.dictionaries(st.text(max_size=4), of, max_size=2)
        case "array":
            return st.lists(values(schema.get("items", {}), depth + 1), max_size=2)
        case "string":
            return KNOWN | st.text(max_size=6)
        case "integer":
            return st.integers(0, 3) | st.integers()
        case "number":
            return st.floats(0, 3) | st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
    return JUNK


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """A request for an operation of the document."""
    method, path, operation = draw(st.sampled_from(OPERATIONS))
    query = {}
    for parameter in operation.get("parameters", ()):
        value = draw(values(parameter["schema"]))
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(str(value), safe=""))
        elif parameter.get("required") or draw(st.booleans()):
            query[parameter["name"]] = value if isinstance(value, list) else str(value)
    body = None
    if "requestBody" in operation:
        body = draw(values(operation["requestBody"]["content"]["application/json"]["schema"]))
    return method, path, query, body


def with_key(content: Any, key: str) -> Any:
    """The body with the key in its places, and without long waits."""
    if isinstance(content, dict):
        return {
            name: 0
            if name == "wait" and isinstance(one, int | float) and 0 < one <= 60
            else with_key(one, key)
            for name, one in content.items()
        }
    if isinstance(content, list):
        return [with_key(one, key) for one in content]
    return key if content == "KEY" else content


async def prepared(store: Store, web: httpx.AsyncClient) -> tuple[Desk, str]:
    for run in (RUN, OTHER):
        await store.put_run(run)
    desk = Desk(store, "", web, tokens())
    await desk.post("/rollouts", {"rollouts": [rollout("r0"), rollout("r1")]})
    (lease,) = await desk.lease("all admin", seconds=3600)
    return desk, lease["key"]


async def ask_all(desk: Desk, key: str, asked: list[Asked]) -> None:
    for method, path, query, body in asked:
        answer = await desk.ask(
            method, path.removeprefix("/api/v1"), with_key(body, key), scope="all admin", **query
        )
        assert answer.status_code < 500, (method, path, query, body, answer.text)
        if answer.status_code != 200:
            problem = answer.json()["error"]
            assert problem["code"]
            assert problem["message"]


@contextmanager
def opened(store: Store) -> Iterator[tuple[asyncio.Runner, Desk, str]]:
    """The API over a store, on a loop of its own; a desk, and the key of a lease."""
    web = httpx.AsyncClient(
        transport=httpx.ASGITransport(Api(store, secret=SERVER_SECRET).app()), base_url="http://here"
    )
    with asyncio.Runner() as runner:
        runner.run(store.__aenter__())
        try:
            yield runner, *runner.run(prepared(store, web))
        finally:
            runner.run(web.aclose())
            runner.run(store.__aexit__(None, None, None))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_request_breaks_the_server(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(f"sqlite:///{tmp_path}/runs.db")
    with opened(store) as (runner, desk, key):

        @settings(suppress_health_check=list(HealthCheck))
        @given(st.lists(requests(), min_size=1, max_size=4))
        def check(asked: list[Asked]) -> None:
            runner.run(ask_all(desk, key, asked))

        check()


def test_no_bytes_break_the_server() -> None:
    with opened(MemoryStore()) as (runner, desk, _):

        @given(st.binary(min_size=1, max_size=64), st.sampled_from(["la-", "ll-", "lt-", ""]))
        def check(content: bytes, prefix: str) -> None:
            answer = runner.run(desk.ask("POST", "/leases", content, scope="all admin"))
            assert 400 <= answer.status_code < 500
            forged = prefix + b64encode(content[:40]).decode() + "." + content[40:].hex()
            error(runner.run(desk.ask("GET", "/runs", scope=forged)), 401, "invalid_token")

        check()
