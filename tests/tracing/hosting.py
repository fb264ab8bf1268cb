"""An app whose agent `checker` calls a hosted model, and what is seen of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai import DefaultHttpxClient, OpenAI

from lightning_core.records.types import Call
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, agent, rollout_scope
from tests.tracing.replaying import EVENTS, Answer, Replay, chunk, completion

NOWHERE = "http://127.0.0.1:1"
library: Any = importlib.import_module(DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
"""The SDK's HTTP library: httpx or httpx2."""
HELLO: Any = [{"role": "user", "content": "hello"}]
SAID = Answer((completion({"content": "it is done"}),))
STREAMED = Answer(
    (chunk({"role": "assistant"}), chunk({"content": "it is "}), chunk({"content": "done"}, "stop")), EVENTS
)


def scope_of(rollout: str = "r1") -> Scope:
    """A rollout in which only `writer` is trained."""
    return Scope(rollout, 2, NOWHERE, "token", ("writer",))


def client_of(server: GatewayDouble | Replay, **options: Any) -> OpenAI:
    return OpenAI(**{"api_key": "sk-mine", "base_url": f"{server.url}/v1", "max_retries": 0, **options})


def one(scope: Scope) -> Call:
    """The only call that was noticed."""
    [call], _ = scope.noticed()
    return call


@contextmanager
def seeing(server: GatewayDouble | Replay, **options: Any) -> Iterator[tuple[OpenAI, Scope]]:
    """A client of `checker` in a rollout, and where its calls are noted."""
    with client_of(server, **options) as client, rollout_scope(scope_of()) as scope, agent("checker"):
        yield client, scope


def said(call: Call) -> Any:
    return call.choices[0].message["content"]
