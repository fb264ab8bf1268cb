"""The document says what the server does: every operation in words, with examples that are accepted."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lightning_core.api.app import Api
from lightning_core.records.types import Rollout
from lightning_core.stores.sqlite import MemoryStore
from tests.api.conftest import Desk, open_desk

DOCUMENT: dict[str, Any] = Api(MemoryStore()).app().openapi()
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
WITH_BODIES = [
    (method, path, operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1])
    for method, path, operation in OPERATIONS
    if "requestBody" in operation
]


async def test_the_server_hands_out_the_document_without_a_token() -> None:
    async with open_desk(MemoryStore(), listening=False) as desk:
        assert (await desk.ask("GET", "/openapi.json", scope="")).json() == DOCUMENT


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS]
)
def test_every_operation_is_described_with_its_errors(method: str, path: str, operation: Any) -> None:
    assert operation["description"].strip().endswith(".")
    if path.endswith("/health"):
        return
    assert operation["security"]
    for status in ("401", "403", "404", "409", "413", "422", "503"):
        body = operation["responses"][status]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/ErrorBody"}
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]


def test_every_type_says_what_it_is_and_what_its_fields_mean() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name, schema in schemas.items():
        assert schema.get("description") or name == "JsonValue", name
    assert schemas["Rollout"]["properties"]["step"]["description"].startswith("The training step")
    assert schemas["Leased"]["properties"]["key"]["description"].startswith("The proof")
    assert "secret" not in schemas["PublicRun"]["properties"]


@pytest.mark.parametrize(("method", "path", "name"), WITH_BODIES, ids=[f"{m} {p}" for m, p, _ in WITH_BODIES])
async def test_the_example_of_a_body_is_of_its_schema_and_is_accepted(
    method: str, path: str, name: str
) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    if "examples" not in schema:
        assert name in {"Run", "ResourceVersion", "Metrics", "Member"}, "the project's own types need none"
        return
    (example,) = schema["examples"]
    jsonschema.validate(example, {"$ref": f"#/components/schemas/{name}", **DOCUMENT})
    async with open_desk(MemoryStore(), listening=False) as desk:
        answer = await desk.ask(method, path.removeprefix("/api/v1"), await _at_home(desk, example, path))
        assert answer.status_code == 200, answer.text


async def _at_home(desk: Desk, example: dict[str, Any], path: str) -> dict[str, Any]:
    """The example with leases and rollouts that this store has, and without the waiting."""
    if path in ("/api/v1/rollouts", "/api/v1/tasks"):
        return example
    task: Any = {"input": {}}
    names = ("r1", "r2")
    await desk.store.enqueue(
        [Rollout(id=name, run_id="run", task=task, group_id="g", step=0) for name in names]
    )
    given = dict(example) if path == "/api/v1/leases" else {**example}
    if "wait" in given:
        given["wait"] = 0
    if path != "/api/v1/leases":
        keys = [one["key"] for one in await desk.lease("admin", limit=2)]
        given |= {"keys": keys} if "keys" in given else {}
        given |= {"key": keys[0]} if "key" in given else {}
    return given
