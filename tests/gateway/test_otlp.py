"""Spans sent by OTLP are stored as their rollout's, all or none, and whoever may not send them can't."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import subprocess
import sys
import zlib
from typing import Any

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Status as SpanStatus

import lightning_core as lightning
from lightning_core.errors import ApiError
from lightning_core.gateway import otlp, otlp_wire
from lightning_core.gateway.access import Caller
from lightning_core.gateway.limits import LIMITS
from lightning_core.records.linking import inherit_agents, link
from lightning_core.records.types import Event, Span
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.scope import Scope, rollout_scope
from tests.gateway.conftest import House, open_house

PROTOBUF = {"content-type": "application/x-protobuf"}
TRACE, ROOT, CHILD = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
CHILD_JSON: dict[str, Any] = {
    "traceId": TRACE,
    "spanId": CHILD,
    "parentSpanId": ROOT,
    "name": "chat",
    "kind": 3,
    "startTimeUnixNano": "1500000000",
    "endTimeUnixNano": "2500000000",
    "attributes": [
        {"key": "gen_ai.response.id", "value": {"stringValue": "chatcmpl-1"}},
        {"key": "tokens", "value": {"intValue": "12"}},
        {"key": "traceId", "value": {"stringValue": "not hex"}},
        {"key": "list", "value": {"arrayValue": {"values": [{"doubleValue": 0.5}, {"boolValue": True}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "aGk="}}]}}},
        {"key": "empty", "value": {}},
    ],
    "events": [{"name": "exception", "timeUnixNano": "2000000000", "attributes": []}],
    "status": {"code": 2, "message": "it broke"},
    "fieldOfTheFuture": 1,
}
ROOT_JSON = {
    "traceId": TRACE,
    "spanId": ROOT,
    "name": "invoke_agent planner",
    "startTimeUnixNano": "1000000000",
    "endTimeUnixNano": "3000000000",
    "attributes": [{"key": "gen_ai.agent.name", "value": {"stringValue": "planner"}}],
}


def batch(*spans: dict[str, Any]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()


def protobuf(*spans: tuple[bytes, bytes]) -> bytes:
    """A batch of spans that have nothing but their ids."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number, (trace_id, span_id) in enumerate(spans):
        scope.spans.add(trace_id=trace_id, span_id=span_id, name=f"s{number}")
    return request.SerializeToString()


async def post(
    web: httpx.AsyncClient, content: bytes, token: str, path: str = "/v1/traces", **headers: str
) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await web.post(
        path,
        content=content,
        headers={"content-type": "application/json", "authorization": f"Bearer {token}".strip(), **given},
    )


async def stored(house: House, name: str = "r1") -> list[Event]:
    return (await house.store.get_events([name]))[name]


async def test_json_is_stored_with_every_kind_of_value(house: House, web: httpx.AsyncClient) -> None:
    reply = await post(web, batch(CHILD_JSON), await house.rollout())
    assert (reply.status_code, reply.json()) == (200, {})
    assert reply.headers["content-type"] == "application/json"
    assert await stored(house) == [
        Span(
            id=CHILD,
            trace_id=TRACE,
            parent_id=ROOT,
            rollout_id="r1",
            attempt=1,
            name="chat",
            span_kind="client",
            attributes={
                "gen_ai.response.id": "chatcmpl-1",
                "tokens": 12,
                "traceId": "not hex",
                "list": [0.5, True],
                "map": {"k": "aGk="},
                "empty": None,
            },
            events=[{"name": "exception", "time": 2.0, "attributes": {}}],
            error="it broke",
            started_at=1.5,
            ended_at=2.5,
        )
    ]


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("path", ["", "/rollouts/r1", "/rollouts/r1/agents/a%2Fb"])
async def test_the_official_exporter_reaches_every_address(
    house: House, monkeypatch: pytest.MonkeyPatch, path: str, compression: Compression
) -> None:
    """As an untouched program is set up: by its environment."""
    token = await house.rollout()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", house.url + path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Authorization=Bearer%20{token}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression.value)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the program")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("app")
    with (
        tracer.start_as_current_span("root", kind=SpanKind.SERVER) as root,
        tracer.start_as_current_span("child", attributes={"k": ("a", "b")}) as child,
    ):
        child.set_status(SpanStatus(StatusCode.ERROR))
    assert provider.force_flush()
    provider.shutdown()
    first, second = await stored(house)
    assert isinstance(first, Span)
    assert isinstance(second, Span)
    assert (first.name, first.span_kind, first.parent_id) == ("root", "server", None)
    assert first.id == f"{root.get_span_context().span_id:016x}"
    kept = {"k": ["a", "b"], "service.name": "the program", "otel.scope.name": "app"}
    assert (second.name, second.parent_id, second.attributes) == ("child", first.id, kept)
    assert (first.error, second.error) == (None, "")
    agent = "a/b" if "agents" in path else None
    assert [span.agent for span in inherit_agents([first, second])] == [agent, agent]


async def test_a_child_that_came_first_is_given_the_agent_of_what_is_around_it(
    house: House, web: httpx.AsyncClient
) -> None:
    token = await house.rollout()
    reply = await house.client(token).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}]
    )
    response_id = {"key": "gen_ai.response.id", "value": {"stringValue": reply.id}}
    await post(web, batch({**CHILD_JSON, "attributes": [response_id]}), token)
    assert [event.agent for event in inherit_agents(await stored(house))] == [None]
    await post(web, batch(ROOT_JSON), token)
    root, child = inherit_agents(link(await house.calls(), await stored(house)))
    assert (root.agent, child.agent) == ("planner", "planner")
    assert (root.call_id, child.call_id) == (None, (await house.one_call()).id)


async def test_a_batch_sent_again_is_stored_once(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    for _ in range(2):
        assert (await post(web, batch(CHILD_JSON, ROOT_JSON), token)).status_code == 200
    assert len(await stored(house)) == 2


async def test_spans_without_valid_ids_are_left_out_and_counted(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    good, bad = (b"\1" * 16, b"\2" * 8), [(b"\0" * 16, b"\2" * 8), (b"\1" * 16, b"\2" * 7)]
    reply = await post(web, protobuf(good, *bad), token, content_type=otlp.PROTOBUF)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == otlp.PROTOBUF
    left_out = ExportTraceServiceResponse.FromString(reply.content).partial_success
    assert left_out.rejected_spans == 2
    assert "'s1'" in left_out.error_message
    assert "'s2'" in left_out.error_message
    assert [event.id for event in await stored(house)] == ["02" * 8]


@pytest.mark.parametrize("field", ["traceId", "spanId", "parentSpanId"])
@pytest.mark.parametrize("wrong", ["xyz", "abcd", 3, ["1"]])
async def test_one_span_with_an_id_that_is_none_does_not_keep_out_the_others(
    house: House, web: httpx.AsyncClient, field: str, wrong: Any
) -> None:
    reply = await post(web, batch(ROOT_JSON, {**CHILD_JSON, field: wrong}), await house.rollout())
    assert (reply.status_code, reply.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert [event.id for event in await stored(house)] == [ROOT]


async def test_a_span_keeps_the_names_of_its_program_and_instrumentation(
    house: House, web: httpx.AsyncClient
) -> None:
    name = {"key": "service.name", "value": {"stringValue": "shop"}}
    host = {"key": "host.name", "value": {"stringValue": "h"}}
    of_scope = {"scope": {"name": "openai.v1"}, "spans": [ROOT_JSON]}
    sent = {"resourceSpans": [{"resource": {"attributes": [host, name]}, "scopeSpans": [of_scope]}]}
    await post(web, json.dumps(sent).encode(), await house.rollout())
    (span,) = await stored(house)
    assert isinstance(span, Span)
    assert span.attributes == {
        "gen_ai.agent.name": "planner",
        "service.name": "shop",
        "otel.scope.name": "openai.v1",
    }


async def test_whoever_may_not_send_is_refused_by_name(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout("r1")
    other = await house.rollout("r2")
    cases = [
        (401, "/v1/traces", ""),
        (401, "/v1/traces", token[:-3] + "abc"),
        (403, "/rollouts/r1/v1/traces", other),
        (403, "/rollouts/r1/agents/a/v1/traces", other),
    ]
    for status, path, key in cases:
        for form, read in (("application/json", _json_status), (otlp.PROTOBUF, _protobuf_status)):
            reply = await post(web, batch(CHILD_JSON), key, path, content_type=form)
            code, message = read(reply)
            assert (reply.status_code, code) == (status, {401: 16, 403: 7}[status])
            assert message.startswith({401: "invalid_api_key", 403: "other_rollout"}[status])
    assert await stored(house, "r1") == await stored(house, "r2") == []


def _json_status(reply: httpx.Response) -> tuple[int, str]:
    return reply.json()["code"], reply.json()["message"]


def _protobuf_status(reply: httpx.Response) -> tuple[int, str]:
    status = Status.FromString(reply.content)
    return status.code, status.message


async def test_a_gateway_without_rollouts_has_no_place_for_spans() -> None:
    async with open_house(anonymous=True) as house, httpx.AsyncClient(base_url=house.url) as web:
        reply = await post(web, batch(CHILD_JSON), "any")
        assert (reply.status_code, reply.json()["code"]) == (401, 16)
        assert "rollout" in reply.json()["message"]


BOMB = gzip.compress(bytes(LIMITS.body_bytes + 1))


@pytest.mark.parametrize(
    ("content", "headers", "status", "name"),
    [
        (b"{", {}, 400, "malformed_body"),
        (b"[]", {}, 400, "malformed_body"),
        (b'{"resourceSpans": 3}', {}, 400, "malformed_body"),
        (b"[" * 100_000, {}, 400, "malformed_body"),
        (batch({**CHILD_JSON, "kind": {}}), {}, 400, "malformed_body"),
        (b"\xff\xff", PROTOBUF, 400, "malformed_body"),
        (b"no gzip", {"content-encoding": "gzip"}, 400, "malformed_body"),
        (gzip.compress(batch(CHILD_JSON))[:-9], {"content-encoding": "gzip"}, 400, "malformed_body"),
        (gzip.compress(batch(CHILD_JSON)) * 2, {"content-encoding": "gzip"}, 400, "malformed_body"),
        (zlib.compress(batch(CHILD_JSON)) + b"x", {"content-encoding": "deflate"}, 400, "malformed_body"),
        (BOMB, {"content-encoding": "gzip"}, 413, "too_large"),
        (batch(*[{}] * 10_001), {}, 413, "batch_too_large"),
        (protobuf(*[(b"", b"")] * 10_001), PROTOBUF, 413, "batch_too_large"),
        (batch({"events": [{}] * 100_001}), {}, 413, "batch_too_large"),
        (b'{"resourceSpans": [%s{}]}' % (b"{}," * 10_000), {}, 413, "batch_too_large"),
        (b"\x0a\x00" * 10_001, PROTOBUF, 413, "batch_too_large"),
        (b'{"resource_spans": [{"scope_spans": [%s{}]}]}' % (b"{}," * 10_000), {}, 413, "batch_too_large"),
        (zlib.compress(bytes(LIMITS.body_bytes + 1)), {"content-encoding": "deflate"}, 413, "too_large"),
        (b"x" * (LIMITS.body_bytes + 1), {}, 413, "too_large"),
        (batch(CHILD_JSON), {"content-encoding": "br"}, 415, "unsupported_media_type"),
        (batch(CHILD_JSON), {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    ],
    ids=[
        *("half JSON", "a list", "no list of spans", "deep", "span kind"),
        *("not protobuf", "not gzip", "half gzip", "two gzips", "deflate and more", "gzip bomb"),
        *("spans", "spans in protobuf", "events", "resources", "resources in protobuf", "scopes"),
        *("deflate bomb", "large", "brotli", "text"),
    ],
)
async def test_what_is_too_large_or_broken_is_refused_by_name_and_stores_nothing(
    house: House, web: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int, name: str
) -> None:
    reply = await post(web, content, await house.rollout(), **headers)
    read = _protobuf_status if headers == PROTOBUF else _json_status
    assert (reply.status_code, read(reply)[1].partition(":")[0]) == (status, name)
    assert await stored(house) == []


def nested(content: bytes, *numbers: int) -> bytes:
    """A message of protobuf as these fields within one another, the outermost first."""
    for number in reversed(numbers):
        size, length = len(content), b""
        while size >= 0x80:
            size, length = size >> 7, length + bytes([size & 0x7F | 0x80])
        content = bytes([number << 3 | 2]) + length + bytes([size]) + content
    return content


MANY = 10_400_000
"""Empty messages in 20 MiB, which gzip writes in 20 kB."""
BOMBS = {
    "spans": nested(b"\x12\x00" * MANY, 1, 2),
    "attributes": nested(b"\x4a\x00" * MANY, 1, 2, 2),
    "events": nested(b"\x5a\x00" * MANY, 1, 2, 2),
    "links": nested(b"\x6a\x00" * MANY, 1, 2, 2),
    "attributes of a resource": nested(b"\x0a\x00" * MANY, 1, 1),
    "attributes of an event": nested(b"\x1a\x00" * MANY, 1, 2, 2, 11),
    "values": nested(b"\x0a\x00" * MANY, 1, 2, 2, 9, 2, 5),
    "a number again and again": nested(b"\x30\x01" * MANY, 1, 2, 2),
    "fields of the future": nested(b"\x78\x01" * MANY, 1, 2, 2),
    "attributes in JSON": batch({"attributes": []}).replace(b'"attributes": []', b'"attributes": [%s]')
    % (b'{"key":"a"},' * 200_001)[:-1],
    "values in JSON": b'{"resourceSpans": [%s{}]}' % (b"{}," * 6_000_000),
    "lists in JSON": b'{"x": [%s[]]}' % (b"[]," * 6_000_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_is_in_a_batch_is_counted_before_anything_of_it_is_made(bomb: str) -> None:
    form = otlp.JSON if "JSON" in bomb else otlp.PROTOBUF
    caller = Caller("call", "writer", True, "r1", 1, None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ApiError, match=r"more than \d+"):
        otlp_wire.read_spans(BOMBS[bomb], form, caller)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 150 * 1024  # kB


def test_braces_and_commas_in_a_text_are_no_values() -> None:
    code = 'if (a[0], b) { return [1, 2, {x: \\" }]; }' * 100_000
    content = batch({**CHILD_JSON, "attributes": [{"key": "code", "value": {"stringValue": code}}]})
    spans, rejected = otlp_wire.read_spans(content, otlp.JSON, Caller("call", "writer", True, "r1", 1, None))
    assert (spans[0].attributes["code"], rejected) == (code, [])


class FullStore(MemoryStore):
    async def add_events(self, events: Any) -> None:
        raise OSError("no space left")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_can_not_be_stored_may_be_sent_again() -> None:
    async with open_house(store=FullStore()) as house, httpx.AsyncClient(base_url=house.url) as web:
        reply = await post(web, batch(CHILD_JSON), await house.rollout())
    assert (reply.status_code, reply.json()["code"]) == (503, 14)
    assert "no space left" in reply.json()["message"]


async def test_spans_of_two_hundred_programs_at_once_are_each_their_own(house: House) -> None:
    """One exporter for each rollout, as in as many processes, from as many threads."""
    tokens = {f"r{index}": await house.rollout(f"r{index}") for index in range(200)}

    def program(name: str) -> None:
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        exporter = OTLPSpanExporter(f"{house.url}/rollouts/{name}/v1/traces", headers=headers)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        parent = provider.get_tracer("app").start_span("root", attributes={"gen_ai.agent.name": name})
        provider.get_tracer("app").start_span("child", context=set_span_in_context(parent)).end()
        parent.end()
        provider.shutdown()

    await asyncio.gather(*(asyncio.to_thread(program, name) for name in tokens))
    events = await house.store.get_events(tokens)
    for name, spans in events.items():
        assert sorted((span.rollout_id, str(span.name)) for span in spans) == [
            (name, "child"),
            (name, "root"),
        ]
        assert {span.agent for span in inherit_agents(spans)} == {name}


def test_without_the_extra_the_refusal_says_what_to_install() -> None:
    """In a process of its own in which OpenTelemetry can't be imported."""
    code = """
import asyncio, sys
sys.modules["opentelemetry"] = sys.modules["google"] = None
import httpx
from tests.gateway.conftest import open_house

async def main():
    async with open_house() as house, httpx.AsyncClient(base_url=house.url) as web:
        headers = {"authorization": "Bearer " + await house.rollout()}
        reply = await web.post("/v1/traces", content=b"", headers=headers)
        print(reply.status_code, reply.json())

asyncio.run(main())
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("501 ")
    assert "pip install 'agent-lightning-core[otel]'" in printed


def test_the_gateway_does_not_import_opentelemetry_before_it_is_needed() -> None:
    code = "import lightning_core.gateway.app, sys; print([m for m in sys.modules if 'opentelemetry' in m])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


PROGRAM = """
import openai
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
OpenAIInstrumentor().instrument(tracer_provider=provider)
client = openai.OpenAI()
tracer = provider.get_tracer("app")
messages = [{"role": "user", "content": "hi"}]
with tracer.start_as_current_span("invoke_agent planner", attributes={"gen_ai.agent.name": "planner"}):
    client.chat.completions.create(model="m", messages=messages)
for _ in client.chat.completions.create(model="m", messages=messages, stream=True):
    pass
client.responses.create(model="m", input="hi")
"""


async def test_a_program_of_its_own_sends_calls_and_spans_that_find_each_other(house: House) -> None:
    with rollout_scope(Scope("r1", 1, house.url, await house.rollout())):
        environment = {**os.environ, **lightning.environment(agent="program")}
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", PROGRAM, env=environment, stderr=subprocess.PIPE
    )
    _, said = await program.communicate()
    assert program.returncode == 0, said.decode()
    calls = await house.calls()
    spans = inherit_agents(link(calls, await stored(house)))
    described = {span.call_id: span for span in spans if span.call_id}
    assert described.keys() == {call.id for call in calls}
    assert [described[call.id].agent for call in calls] == ["planner", "program", "program"]
    assert len(spans) == 4
