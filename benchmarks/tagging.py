"""The time that tagging adds to one request, in microseconds: `python -m benchmarks.tagging`. The goal is 50
µs.

Times `_build_request` alone, the SDK's step in which a request is tagged and routed; nothing is sent. A call
that stays at the app's own endpoint is seen until its reply has ended, so there the HTTP client's `send` is
timed as well, up to a transport that answers at once. Every round measures all situations after one another,
so that what disturbs the machine disturbs them alike, and the cost of a situation is its CPU time less that
of the bare SDK in the same round.

OpenTelemetry is there in all situations; only in those called span the app uses it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from langchain_core.callbacks import CallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from lightning_langgraph import LightningCallback
from openai import OpenAI
from openai._models import FinalRequestOptions
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.plugins import load_plugins
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, agent, rollout_scope

ROUNDS, REQUESTS = 40, 250
GOAL = 50.0
STREAMED_CHUNKS = 30
EVENTS = "text/event-stream"
Build = Callable[[], object]


@dataclass(frozen=True)
class Steps:
    """The timed steps."""

    routed: Build
    hosted: Build
    whole: Build
    """A hosted call, sent, and its reply read at once."""
    streamed: Build
    """The same, read as a stream."""


def main() -> None:
    rounds: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        steps = _open_steps(stack)
        for _ in range(ROUNDS):
            for name, base, microseconds in _round(steps):
                rounds.setdefault((name, base), []).append(microseconds)
    times_of = {name: times for (name, _), times in rounds.items()}
    results = {}
    for (name, base), times in rounds.items():
        added = statistics.median(time - before for time, before in zip(times, times_of[base], strict=True))
        results[name] = {"median": statistics.median(times), "added": added}
        print(f"{name:<40} {results[name]['median']:7.1f} µs   added {added:6.1f} µs")
    record = {"goal_added": GOAL, "openai": openai.__version__, "microseconds": results}
    path = Path(__file__).parent / "results" / "tagging.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _open_steps(stack: ExitStack) -> Steps:
    routed = stack.enter_context(OpenAI(api_key="none"))
    hosted = stack.enter_context(OpenAI(api_key="sk-mine", http_client=httpx.Client(transport=Hosted())))
    return Steps(_builder(routed), _builder(hosted), _sender(hosted, False), _sender(hosted, True))


def _round(steps: Steps) -> Iterator[tuple[str, str, float]]:
    """Each situation, the one it is compared with, and its time."""
    bare, whole, streamed = "bare SDK", "bare SDK, sent", f"bare SDK, {STREAMED_CHUNKS} chunks read"
    scope = Scope("r" * 16, 1, "http://127.0.0.1:8000", "t" * 60, ("write_*", "node"))
    yield bare, bare, _time(steps.routed)
    yield whole, whole, _time(steps.whole)
    yield streamed, streamed, _time(steps.streamed)
    with instrument(load_plugins(["langgraph"]).who):
        yield "outside a rollout", bare, _time(steps.routed)
        with rollout_scope(scope), agent("write_query"):
            yield "trained agent, block", bare, _time(steps.routed)
        with rollout_scope(scope), _node():
            yield "trained agent, LangGraph node", bare, _time(steps.routed)
        with rollout_scope(scope), _spans(1):
            yield "trained agent, span", bare, _time(steps.routed)
        with rollout_scope(scope), _spans(10):
            yield "trained agent, span ten further out", bare, _time(steps.routed)
        with rollout_scope(scope), agent("check"):
            yield "left at its endpoint", bare, _time(steps.hosted)
            yield "left at its endpoint, seen to its end", whole, _time(steps.whole)
            yield f"the same, {STREAMED_CHUNKS} chunks", streamed, _time(steps.streamed)


def _time(build: Build) -> float:
    start = time.thread_time()
    for _ in range(REQUESTS):
        build()
    return (time.thread_time() - start) / REQUESTS * 1e6


def _builder(client: OpenAI) -> Build:
    messages = [{"role": "user", "content": "How many singers are there?" * 20}]
    options: Any = FinalRequestOptions.construct(
        method="post",
        url="/chat/completions",
        json_data={"model": "any", "messages": messages},
        idempotency_key="stainless-python-retry-0123456789",
        security={"bearer_auth": True},
    )
    return lambda: client._build_request(options)


def _sender(client: OpenAI, stream: bool) -> Build:
    build: Any = _builder(client)

    def send() -> None:
        request = build()
        if stream:
            request.headers["accept"] = EVENTS
        with_body = client._client.send(request, stream=stream)
        with_body.read()

    return send


class Hosted(httpx.BaseTransport):
    """A model that answers at once: two sentences, whole or word by word."""

    def __init__(self) -> None:
        text = "There are eight singers. " * 6
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "m"}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._whole = json.dumps({**head, "choices": [choice]}).encode()
        words = [{"index": 0, "delta": {"content": "singers "}, "finish_reason": None}] * (
            STREAMED_CHUNKS - 1
        )
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        self._chunks = [
            f"data: {json.dumps({**head, 'choices': [part]})}\n\n".encode() for part in (*words, end)
        ]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.headers["accept"] == EVENTS:
            return httpx.Response(200, headers={"content-type": EVENTS}, content=iter(self._chunks))
        return httpx.Response(
            200, headers={"content-type": "application/json"}, stream=httpx.ByteStream(self._whole)
        )


@contextmanager
def _node() -> Iterator[None]:
    """The context that LangGraph gives a node."""
    metadata = {"langgraph_node": "node", "langgraph_checkpoint_ns": "graph:0123456789|node:0123456789"}
    callbacks = CallbackManager([LightningCallback()])
    with ExitStack() as stack:
        token = var_child_runnable_config.set({"metadata": metadata, "callbacks": callbacks})
        stack.callback(var_child_runnable_config.reset, token)
        yield


@contextmanager
def _spans(depth: int) -> Iterator[None]:
    """The spans of an instrumented app: an agent's, and within it the SDK's and `depth` - 1 others."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    with ExitStack() as stack:
        attributes = {"gen_ai.agent.name": "node"}
        stack.enter_context(tracer.start_as_current_span("invoke_agent node", attributes=attributes))
        for _ in range(depth):
            stack.enter_context(tracer.start_as_current_span("chat", attributes={"gen_ai.system": "openai"}))
        yield


if __name__ == "__main__":
    main()
