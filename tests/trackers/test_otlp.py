"""The export to a collector: one trace for each rollout, in the conventions' words, always the same."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_core.errors import ConfigError, ExportError
from lightning_core.insight.trace import Trace, build
from lightning_core.records.types import Call, Choice, Event, Reward, Rollout, Span, Status, Task, ToolEvent
from lightning_core.trackers.otlp import OtlpCollector, to_spans
from tests.gateway.conftest import open_house

AT: dict[str, Any] = {"rollout_id": "r1", "attempt": 1, "agent": "writer"}
TRACE, AROUND, CHAT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
CALL = Call(
    **AT,
    id="c1",
    trained=True,
    model="m",
    request={"messages": [{"role": "user", "content": "hi \ud83d"}]},
    prompt_ids=[1, 2, 3],
    choices=[
        Choice(
            completion_ids=[4, 5],
            finish_reason="tool_calls",
            message={
                "content": None,
                "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}],
            },
        )
    ],
    policy_version=7,
    response_id="chatcmpl-c1",
    started_at=10.0,
    ended_at=11.0,
)
HOSTED = Call(
    **{**AT, "agent": "judge"},
    id="c2",
    trained=False,
    status="failed",
    error="no credit",
    endpoint="https://api.openai.com/v1",
    started_at=14.0,
    ended_at=15.0,
)
EVENTS: list[Event] = [
    ToolEvent(
        **AT,
        id="t1",
        framework="langgraph",
        name="f",
        arguments="{}",
        error="ValueError: no",
        error_type="raised",
        tool_call_id="x",
        started_at=12.0,
        ended_at=13.0,
    ),
    Span(**AT, id=AROUND, trace_id=TRACE, name="app", started_at=9.0, ended_at=16.0),
    Span(
        **AT,
        id=CHAT,
        trace_id=TRACE,
        parent_id=AROUND,
        name="openai.chat",
        span_kind="client",
        attributes={"gen_ai.response.id": "chatcmpl-c1", "big": 2**70, "deep": {"list": [1, None, "\ud83d"]}},
        events=[{"name": "e", "time": 10.5, "attributes": {"k": 1}}],
        error="",
        started_at=10.0,
        ended_at=11.0,
    ),
]
REWARDS = [
    Reward(rollout_id="r1", attempt=1, value=1.0, created_at=17.0),
    Reward(
        rollout_id="r1",
        attempt=1,
        value=-0.1,
        kind="intermediate",
        call_id="c1",
        source="air",
        reason="tool raised",
        created_at=13.0,
    ),
]


def trace(name: str = "r1") -> Trace:
    rollout = Rollout(
        id=name,
        run_id="run",
        task=Task(id="t", input={"q": 1}),
        group_id="g",
        step=3,
        status=Status.SUCCEEDED,
        attempts=1,
        reward=1.0,
        created_at=1.0,
        finished_at=17.0,
    )
    return build(rollout, [CALL, HOSTED], REWARDS, EVENTS)


class Received(ThreadingHTTPServer):
    """A collector: what it was sent, and what it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.answer: tuple[int, bytes] = (200, b"")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> dict[str, Any]:
        """Returns the spans by name."""
        found = [
            span
            for _, _, request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]
        return {span.name: span for span in found}


class _Handler(BaseHTTPRequestHandler):
    server: Received

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest.FromString(content)
        self.server.requests.append((self.path, dict(self.headers), request))
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def receiving() -> Iterator[Received]:
    with Received() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def collector() -> Iterator[Received]:
    with receiving() as server:
        yield server


def send(url: str, *traces: Trace) -> None:
    with OtlpCollector(url) as collector:
        for each in traces:
            collector.send(to_spans(each))


def values(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


def test_a_rollout_is_one_trace_in_the_words_of_the_conventions(collector: Received) -> None:
    send(collector.url, trace())
    ((path, headers, request),) = collector.requests
    assert (path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    resource = request.resource_spans[0].resource
    assert {pair.key: pair.value.string_value for pair in resource.attributes}[
        "service.name"
    ] == "agentlightning"
    spans = collector.spans()
    root, call, tool = spans["rollout r1"], spans["chat m"], spans["execute_tool f"]
    assert root.parent_span_id == b""
    assert {root.trace_id, call.trace_id, tool.trace_id, spans["chat"].trace_id} == {root.trace_id}
    assert (call.parent_span_id, tool.parent_span_id) == (root.span_id, call.span_id)
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (10**10, 17 * 10**9)
    assert values(root)["lightning.task.id"] == "t"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "chatcmpl-c1",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.agent.name": "writer",
        "lightning.policy_version": 7,
        "lightning.call.trained": True,
    }
    assert expected.items() <= values(call).items()
    (said,) = json.loads(values(call)["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"}]
    assert values(tool)["gen_ai.tool.call.id"] == "x"
    assert (values(tool)["error.type"], tool.status.code, tool.status.message) == (
        "raised",
        2,
        "ValueError: no",
    )


def test_a_call_that_was_only_seen_and_failed_says_so(collector: Received) -> None:
    send(collector.url, trace())
    hosted = collector.spans()["chat"]
    seen = values(hosted)
    assert (seen["server.address"], seen["lightning.endpoint"]) == (
        "api.openai.com",
        "https://api.openai.com/v1",
    )
    assert (hosted.status.code, hosted.status.message, seen["error.type"]) == (2, "no credit", "failed")
    assert "gen_ai.usage.input_tokens" not in seen


def test_rewards_are_evaluations_of_what_they_are_about(collector: Received) -> None:
    send(collector.url, trace())
    spans = collector.spans()
    (final,), (intermediate,) = spans["rollout r1"].events, spans["chat m"].events
    assert final.name == intermediate.name == "gen_ai.evaluation.result"
    assert values(final)["gen_ai.evaluation.score.value"] == 1.0
    assert (final.time_unix_nano, values(final)["lightning.reward.kind"]) == (17 * 10**9, "final")
    assert values(intermediate)["gen_ai.evaluation.explanation"] == "tool raised"
    assert values(intermediate)["lightning.reward.source"] == "air"


def test_spans_that_came_in_go_out_with_their_ids_and_are_linked(collector: Received) -> None:
    send(collector.url, trace())
    spans = collector.spans()
    chat, around = spans["openai.chat"], spans["app"]
    assert (chat.trace_id.hex(), chat.span_id.hex(), chat.parent_span_id.hex()) == (TRACE, CHAT, AROUND)
    assert (chat.status.code, chat.kind, chat.events[0].name) == (2, 3, "e")
    assert values(chat)["big"] == str(2**70)
    links = [(link.trace_id.hex(), link.span_id.hex()) for link in spans["chat m"].links]
    assert links == [(TRACE, CHAT)]
    assert [link.span_id for link in spans["rollout r1"].links] == [around.span_id]


def test_spans_that_came_in_go_out_under_the_name_of_their_own_program(collector: Received) -> None:
    source = {"service.name": "shop", "otel.scope.name": "openai.v1", "k": "v"}
    named = EVENTS[1].model_copy(update={"attributes": source, "name": "named"})
    send(collector.url, build(trace().rollout, [], [], [named, EVENTS[2]]))
    ((_, _, request),) = collector.requests
    found = {
        span.name: (of_resource.resource, of_scope.scope.name)
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    }
    services = {name: values(resource)["service.name"] for name, (resource, _) in found.items()}
    assert services == {"rollout r1": "agentlightning", "named": "shop", "openai.chat": "unknown_service"}
    assert [scope for _, scope in found.values()] == ["lightning_core", "openai.v1", ""]
    assert values(collector.spans()["named"]) == {"k": "v"}


def test_sending_twice_sends_the_same_and_two_rollouts_are_two_traces(collector: Received) -> None:
    send(collector.url, trace(), trace(), trace("r2"))
    first, second, other = (request for _, _, request in collector.requests)
    assert first == second
    ids = [request.resource_spans[0].scope_spans[0].spans[0].trace_id for request in (first, other)]
    assert len({*ids}) == 2


def test_many_spans_go_in_several_requests(collector: Received) -> None:
    calls = [CALL.model_copy(update={"id": f"c{number}"}) for number in range(600)]
    send(collector.url, build(trace().rollout, calls, [], []))
    sizes = [len(request.resource_spans[0].scope_spans[0].spans) for _, _, request in collector.requests]
    assert (sum(sizes), len(sizes)) == (601, 3)


@pytest.mark.parametrize("ending", ["", "/", "/v1/traces"])
def test_the_address_may_name_the_path_or_not(collector: Received, ending: str) -> None:
    send(collector.url + ending, trace())
    assert [path for path, _, _ in collector.requests] == ["/v1/traces"]


async def test_our_own_gateway_takes_what_we_send(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house() as house:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Authorization=Bearer%20{await house.rollout()}")
        with OtlpCollector(house.url) as collector:
            collector.send(to_spans(trace()))
        stored = (await house.store.get_events(["r1"]))["r1"]
    assert sorted(span.name for span in stored) == sorted(
        ["rollout r1", "chat m", "chat", "execute_tool f", "app", "openai.chat"]
    )


def test_a_collector_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with receiving() as gone:
        url = gone.url
    with pytest.raises(ExportError, match=r"can't be reached: .*refused"):
        send(url, trace())


def test_what_a_collector_answers_is_passed_on(collector: Received) -> None:
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 2
    partial.partial_success.error_message = "too old"
    cases = [
        ((401, b"who are you"), "401 Unauthorized who are you"),
        ((302, b""), "302 Found"),
        ((200, partial.SerializeToString()), "rejected 2 spans: too old"),
    ]
    for answer, words in cases:
        collector.answer = answer
        with pytest.raises(ExportError, match=words):
            send(collector.url, trace())
    collector.answer = (200, b'{"partialSuccess":{}}')
    send(collector.url, trace())


@pytest.mark.parametrize(
    "url",
    [
        "localhost:4318",
        "ftp://host",
        "http://",
        "",
        "http://host:x",
        "http://[",
        "ftp://u:s3cret@host?k=s3cret",
        "http://u:s3cret?x@host",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not the URL of a collector") as refused:
        OtlpCollector(url)
    assert "s3cret" not in str(refused.value)


def test_user_and_password_are_sent_and_not_told(collector: Received) -> None:
    collector.answer = (401, b"")
    with pytest.raises(ExportError, match=f"the collector at {collector.url}/v1/traces refused") as refused:
        send(collector.url.replace("//", "//user:s3cret@"), trace())
    ((_, headers, _),) = collector.requests
    assert headers["Authorization"] == f"Basic {b64encode(b'user:s3cret').decode()}"
    assert "s3cret" not in str(refused.value)
