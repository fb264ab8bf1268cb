"""The requests: valid ones of every endpoint, and how parts of them are changed.

A case follows from the seed and its number alone, so that one can be made again without the others.
"""

from __future__ import annotations

import copy
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_core.tracing.headers import encode_name
from tests.fuzz import bodies
from tests.fuzz.junk import DEPTHS, deep, mutate, number, raw, text, value, write

Target = Literal["chat", "responses", "completions", "anthropic", "rewards", "traces", "other"]
TARGETS: Final[dict[Target, int]] = {
    "chat": 8,
    "responses": 5,
    "completions": 4,
    "anthropic": 5,
    "rewards": 3,
    "traces": 3,
    "other": 1,
}
"""How often each is attacked."""
Key = Literal["live", "ended", "expired", "forged", "none"]
Manner = Literal["whole", "slow", "cut", "stall", "leave", "abort", "half"]
"""How it is sent: at once, in pieces, broken off, never completed; left without or in the middle of the
answer; or with the client's side closed once it is sent."""
_MOST_BYTES: Final = 24 << 20
"""Bytes of a body; more than a server should read."""
_MANNERS: Final[dict[Manner, int]] = {
    "whole": 160,
    "slow": 4,
    "cut": 3,
    "stall": 2,
    "leave": 8,
    "abort": 8,
    "half": 3,
}
_KEYS: Final[dict[Key, int]] = {"live": 60, "ended": 6, "expired": 2, "forged": 2, "none": 2}
_PATHS: Final = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
    "anthropic": "/v1/messages",
}
_AGENTS: Final = (
    "writer",
    "critic",
    "a/b",
    "",
    "%",
    "%00",
    "%ff",
    "ünï",
    "%F0%9F%98%80",
    "x" * 3_000,
    "..",
    "writer%0a",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request and how it is sent. `{live}` and `{bystander}` in path and headers stand for rollouts."""

    number: int
    target: Target
    method: str
    path: str
    headers: tuple[tuple[str, bytes], ...]
    body: bytes
    key: Key
    manner: Manner


def make_case(seed: int, number: int) -> Case:
    """The case of that number."""
    draw = Random(f"{seed}/{number}")
    target: Target = draw.choices(list(TARGETS), list(TARGETS.values()))[0]
    key: Key = draw.choices(list(_KEYS), list(_KEYS.values()))[0]
    manner: Manner = draw.choices(list(_MANNERS), list(_MANNERS.values()))[0]
    method, path, headers, body = _MAKERS[target](draw)
    if draw.random() < 0.01:
        method = draw.choice(("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"))
    return Case(number, target, method, path, tuple(headers.items()), body[:_MOST_BYTES], key, manner)


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases of one kind."""

    name: str
    """Value of the option `--suite`."""
    make: Callable[[int, int], Case]
    """Returns the case of a seed and a number."""
    lanes: int = 1
    """Rollouts that the cases are sent from at once."""
    timed: bool = False
    """Whether bystanders' waiting times are compared with those in pauses."""
    most_slope: float = 12_288.0
    """Bytes of memory that each case may add. A request's body has 36,000 on average: a third of them kept
    would be seen. The allocator gives back little of what the largest so far has taken, so memory rises in
    ever rarer steps."""


Made = tuple[str, str, dict[str, bytes], bytes]
"""(method, path, headers, body)"""


def _dialect(target: Target, make: Callable[[Random], dict[str, Any]]) -> Callable[[Random], Made]:
    def made(draw: Random) -> Made:
        path, headers = _address(draw, _PATHS[target])
        return "POST", path, headers, _changed(draw, make(draw), headers)

    return made


def _address(draw: Random, path: str) -> tuple[str, dict[str, bytes]]:
    """Who is calling, by headers or in the path."""
    headers = {"content-type": b"application/json"}
    agent = draw.choice(_AGENTS) if draw.random() < 0.2 else draw.choice(("writer", "critic"))
    if draw.random() < 0.3:
        rollout = draw.choices(("{live}", "{bystander}", "nobody", "%00", "a%2Fb"), (20, 2, 1, 1, 1))[0]
        path = f"/rollouts/{rollout}/agents/{encode_name(agent)}{path}"
    else:
        headers["x-lightning-agent"] = agent.encode()
        if draw.random() < 0.2:
            headers["x-lightning-rollout"] = draw.choices((b"{live}", b"{bystander}", b"nobody"), (9, 2, 1))[
                0
            ]
    if draw.random() < 0.3:
        headers["x-lightning-call"] = bodies.call_id(draw).encode()
    if draw.random() < 0.01:
        headers[draw.choice(("x-lightning-call", "x-lightning-agent", "x-other"))] = bytes(
            draw.choices(range(128, 256), k=9)
        )
    if draw.random() < 0.02:
        headers["content-type"] = draw.choice(
            (b"text/plain", b"", b"application/x-www-form-urlencoded", b"\xff")
        )
    return path, headers


def _changed(draw: Random, body: Any, headers: dict[str, bytes]) -> bytes:
    """The body as bytes: half of them with changed parts, some not JSON any more."""
    if draw.random() < 0.55:
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            body = mutate(draw, copy.deepcopy(body))
    content = write(body)
    roll = draw.random()
    if roll < 0.02 and content.startswith(b"{") and len(content) > 2:
        first = write({draw.choice(("temperature", "messages", "n", "value")): value(draw)})
        return first[:-1] + b", " + content[1:]  # a key twice
    if roll < 0.05:
        return content[: draw.randrange(len(content) + 1)]
    if roll < 0.06:
        return draw.randbytes(draw.choice((1, 10, 1_000)))
    if roll < 0.07:
        return write(raw(deep(draw)))
    if roll < 0.075:
        headers["content-encoding"] = b"gzip"
        return _gzip(content)
    if roll < 0.08:
        return b""
    return content


def _rewards(draw: Random) -> Made:
    def reward() -> dict[str, Any]:
        made: dict[str, Any] = {"value": draw.choice((1, 0.5, -1, 0, number(draw)))}
        if draw.random() < 0.3:
            made["agent" if draw.random() < 0.5 else "call"] = draw.choice(
                ("writer", "c1", "chatcmpl-c1", text(draw)[:200])
            )
        if draw.random() < 0.3:
            made["reason"] = text(draw)[:5_000]
        if draw.random() < 0.3:
            made["id"] = draw.choice(("a", "b", text(draw)[:200]))
        return made

    many = draw.choice((0, 1, 2, 50, 2_000)) if draw.random() < 0.3 else None
    body = reward() if many is None else [reward() for _ in range(min(many, 5))] * (many // 5 or 1)
    headers = {"content-type": b"application/json"}
    rollout = draw.choices(("{live}", "{bystander}", "nobody"), (20, 2, 1))[0]
    return "POST", f"/rollouts/{rollout}/rewards", headers, _changed(draw, body, headers)


def _traces(draw: Random) -> Made:
    headers: dict[str, bytes] = {}
    rollout = draw.choices(("{live}", "{bystander}"), (20, 2))[0]
    path = draw.choice(("", f"/rollouts/{rollout}", f"/rollouts/{rollout}/agents/writer")) + "/v1/traces"
    if draw.random() < 0.5:
        headers["content-type"] = b"application/json"
        content = _changed(draw, _spans(draw), {})
    else:
        headers["content-type"] = b"application/x-protobuf"
        content = _damaged(draw, _protobuf(draw))
    if draw.random() < 0.3:
        packed, name = draw.choice(((_gzip, b"gzip"), (zlib.compress, b"deflate")))
        content, headers["content-encoding"] = packed(content), name
        if draw.random() < 0.3:
            content = _damaged(draw, content)
        if draw.random() < 0.05:
            content = packed(bytes(21 << 20))  # a bomb
    return "POST", path, headers, content


def _spans(draw: Random) -> dict[str, Any]:
    def attribute() -> dict[str, Any]:
        kinds = {
            "stringValue": text(draw)[:500],
            "intValue": str(draw.choice((1, 2**63 - 1, 2**70))),
            "doubleValue": draw.choice((0.5, "NaN", "Infinity", 1e308)),
            "arrayValue": {"values": [{"boolValue": True}, {}]},
            "kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "aGk="}}]},
        }
        name = draw.choice(list(kinds))
        return {
            "key": draw.choice(("gen_ai.agent.name", "gen_ai.response.id", "k")),
            "value": {name: kinds[name]},
        }

    depth = draw.choice((0, 0, 0, *DEPTHS[:-1]))
    nested = raw('{"arrayValue":{"values":[' * depth + '{"intValue":"1"}' + "]}}" * depth)
    spans = [
        {
            "traceId": f"{draw.getrandbits(128) or 1:032x}",
            "spanId": f"{draw.getrandbits(64) or 1:016x}",
            "name": text(draw)[:300],
            "kind": draw.choice((0, 1, 3, 99)),
            "startTimeUnixNano": draw.choice(("1500000000", "0", str(2**64 - 1))),
            "endTimeUnixNano": "2500000000",
            "attributes": [attribute(), {"key": "nested", "value": nested}],
            "status": {"code": draw.choice((0, 2)), "message": text(draw)[:100]},
        }
        for _ in range(draw.choice((1, 1, 2, 30)))
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def _protobuf(draw: Random) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for _ in range(draw.choice((1, 2, 30))):
        span = scope.spans.add(
            trace_id=draw.randbytes(16), span_id=draw.randbytes(draw.choice((8, 8, 8, 7))), name="s"
        )
        attribute = span.attributes.add(key="k")
        attribute.value.double_value = draw.choice((0.5, float("nan"), float("inf")))
        inner = span.attributes.add(key="nested").value
        for _ in range(draw.choice((0, 0, 20, 90))):
            inner = inner.array_value.values.add()
        inner.int_value = draw.choice((0, 2**63 - 1, -(2**63)))
    return request.SerializeToString()


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # it holds the time otherwise


def _damaged(draw: Random, content: bytes) -> bytes:
    roll = draw.random()
    if roll < 0.4 or not content:
        return content
    at = draw.randrange(len(content))
    if roll < 0.6:
        return content[:at]
    if roll < 0.9:
        return content[:at] + draw.randbytes(draw.choice((1, 1, 4))) + content[at + 1 :]
    return content * draw.choice((2, 300))


def _other(draw: Random) -> Made:
    paths = (
        *(
            "/v1/models",
            "/healthz",
            "/",
            "/v1",
            "/v1/embeddings",
            "/v1/chat/completions/",
            "//v1/models",
            "/%00",
        ),
        *("/rollouts/{live}/agents/writer/v1/models", "/rollouts/{bystander}/agents/writer/v1/models"),
        *(
            "/rollouts//rewards",
            "/rollouts/%ff/agents/%ff/v1/models",
            "/../v1/models",
            "/v1/models?a=b&a=%00",
            "/x" * 2_000,
        ),
    )
    return draw.choice(("GET", "GET", "GET", "POST")), draw.choice(paths), {}, b""


_MAKERS: Final[dict[Target, Callable[[Random], Made]]] = {
    "chat": _dialect("chat", bodies.chat),
    "responses": _dialect("responses", bodies.responses),
    "completions": _dialect("completions", bodies.completions),
    "anthropic": _dialect("anthropic", bodies.anthropic),
    "rewards": _rewards,
    "traces": _traces,
    "other": _other,
}

REQUESTS: Final = Suite("requests", make_case)
"""Requests of every endpoint that are almost right."""
