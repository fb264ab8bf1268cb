"""A gateway to test against: an OpenAI-compatible server on a real socket, which notes every request.

It plays the model too, and obeys marks in the prompt: `fail=2` answers the first two attempts (of one
nonce or key) with 500, `slow=0.2` waits, `late=1` lets only the first attempt wait, `calls=a,b+c` asks
for tool a, then for b and c at once, then answers in words; with `broken=a,b` the arguments for these
tools are not valid JSON. Every argument is the text "asked", or that of the mark `given`. How far it is,
it reads from the prompt: from its own requests for tools, or from their ids where a framework tells of
them in words. With `aloud=1` it says the ids itself, for a framework whose prompts don't tell of a tool
that failed.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lightning_core.dialects import find_dialect
from lightning_core.dialects.base import ChoiceSoFar, Dialect, ReplyWriter, Sampled
from lightning_core.dialects.base import Request as Asked
from lightning_core.dialects.chat import Chat
from lightning_core.dialects.upstream import ChatRequest, Delta
from lightning_core.dialects.writing import ServedModel, TokenText, to_json
from lightning_core.gateway.server import ServerThread
from lightning_core.testing.truth import Tagged, mistakes, read_marks
from lightning_core.tracing.headers import AGENT, CALL, ROLLOUT, decode_name

_CALL_ID = re.compile(r"\bcall_(\w+?)_[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class Seen:
    """One HTTP request as it arrived."""

    path: str
    query: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    status: int

    def tagged(self) -> Tagged:
        agent = self.headers.get(AGENT)
        return Tagged(
            marks=read_marks(self.body, _dialect(self.path) or Chat),
            rollout=self.headers.get(ROLLOUT),
            agent=decode_name(agent) if agent is not None else None,
            call=self.headers.get(CALL),
        )


@dataclass(frozen=True, slots=True)
class AskedTool:
    """A tool that a reply asked for."""

    name: str
    tool_call_id: str
    marks: Mapping[str, str]
    """The truth about the call that was answered so."""


@dataclass
class GatewayDouble:
    """The requests that the server got, its answers, and how many requests it held at once."""

    url: str = ""
    """Base URL, without `/v1`."""
    seen: list[Seen] = field(default_factory=list)
    asked: list[AskedTool] = field(default_factory=list)
    gather: int = 0
    """Hold all answers until so many requests wait at once (or 90 s have passed)."""
    peak: int = 0
    """The most requests that waited at once."""
    _waiting: int = 0
    _attempts: Counter[str] = field(default_factory=Counter)
    _together: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    def tagged(self) -> list[Tagged]:
        return [request.tagged() for request in self.seen]

    def mistakes(self) -> list[str]:
        return mistakes(self.tagged())

    def agents(self) -> Counter[str | None]:
        """Requests by the agent they were tagged with."""
        return Counter(request.agent for request in self.tagged())

    async def answer(self, request: Request) -> Response:
        body = await request.json() if request.method == "POST" else {}
        path = request.url.path
        if "/v1/" not in path:  # a port that was another server's a moment ago has visitors
            return JSONResponse({"error": {"message": "not served"}}, 404)
        if path.endswith("/input_tokens"):  # how long a prompt would be: no call of a model, and not served
            error = {"error": {"message": "not served", "type": "invalid_request_error"}}
            return JSONResponse(error, 404)
        dialect = _dialect(path)
        if dialect is None:
            self.seen.append(Seen(path, request.url.query, dict(request.headers), body, 200))
            return JSONResponse({"object": "list", "data": []})
        marks = read_marks(body, dialect)
        attempt = self._attempt(marks)
        failed = attempt <= int(marks.get("fail", 0))
        self.seen.append(Seen(path, request.url.query, dict(request.headers), body, 500 if failed else 200))
        if failed:
            error = {"error": {"message": "injected", "type": "server_error"}}
            return JSONResponse(error, 500, headers={"retry-after-ms": "1"})
        late = int(marks.get("late", attempt))
        await self._wait(float(marks.get("slow", 0)) if attempt <= late else 0)
        said = compose(dialect, body, marks)
        self.asked += [
            AskedTool(call["function"]["name"], call["id"], marks)
            for call in said
            if not isinstance(call, str)
        ]
        return _reply(dialect, body, said)

    def end(self) -> None:
        """Answer all requests that still wait."""
        self._together.set()
        self._ending.set()

    def _attempt(self, marks: Mapping[str, str]) -> int:
        key = marks.get("key") or marks.get("nonce", "")
        self._attempts[key] += 1
        return self._attempts[key]

    async def _wait(self, seconds: float) -> None:
        self._waiting += 1
        self.peak = max(self.peak, self._waiting)
        if self._waiting >= self.gather:
            self._together.set()
        try:
            async with asyncio.timeout(90):
                await self._together.wait()
        except TimeoutError:
            self._together.set()
        if seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), seconds)
        self._waiting -= 1


@contextmanager
def serving(gather: int = 0) -> Iterator[GatewayDouble]:
    """A running double on a free port of this machine."""
    double = GatewayDouble(gather=gather)
    app = Starlette(routes=[Route("/{path:path}", double.answer, methods=["GET", "POST"])])
    server = ServerThread(app, double.end, "lightning-gateway-double")
    double.url = server.start()
    try:
        yield double
    finally:
        server.stop()


def _dialect(path: str) -> type[Dialect] | None:
    return find_dialect(path.partition("/v1")[2])


def compose(
    dialect: type[Dialect], body: Mapping[str, Any], marks: Mapping[str, str]
) -> list[str | dict[str, Any]]:
    """Writes the model's next reply in the script of the `calls` mark: tool calls, and words at its end.

    For the tools in the `broken` mark the arguments are not valid JSON.
    """
    steps = [step.split("+") for step in marks.get("calls", "").split(",") if step]
    names = {name for step in steps for name in step}
    asked = [name for name in _asked(dialect, body) if name in names]
    for step in steps:
        if not asked:
            tools, broken = dialect.offered_tools(body), marks.get("broken", "").split(",")
            given = marks.get("given", "asked")
            calls = [_call(name, tools.get(name) or {}, given, name in broken) for name in step]
            return [*([" ".join(call["id"] for call in calls)] if "aloud" in marks else []), *calls]
        asked = asked[len(step) :]
    return ["it ", "is ", "done"]


def _asked(dialect: type[Dialect], body: Mapping[str, Any]) -> list[str]:
    """The tools that a prompt says were asked for, in its order."""
    parts = [part for message in dialect.messages(body) for part in message["parts"]]
    asked = [part["name"] for part in parts if part["type"] == "tool_call"]
    if asked:
        return asked
    told = " ".join(part["content"] for part in parts if part["type"] == "text")
    return [found[1] for found in {found[0]: found for found in _CALL_ID.finditer(told)}.values()]


def _call(name: str, schema: Mapping[str, Any], value: str, broken: bool) -> dict[str, Any]:
    """A request for a tool; all of its required arguments are taken to be strings."""
    given = dict.fromkeys(schema.get("required") or (), value)
    function = {"name": name, "arguments": '{"broken": ' if broken else json.dumps(given)}
    return {"id": f"call_{name}_{uuid.uuid4().hex}", "type": "function", "function": function}


def _reply(dialect: type[Dialect], body: Mapping[str, Any], said: list[str | dict[str, Any]]) -> Response:
    """Returns the reply to a request, streamed or whole."""
    deltas = [
        Delta(0, [1], [-1.0], part) if isinstance(part, str) else Delta(0, [1], [-1.0], tool_calls=[part])
        for part in said
    ]
    finish = "stop" if isinstance(said[-1], str) else "tool_calls"
    deltas.append(Delta(0, [], [], finish_reason=finish))
    sampled = Sampled(uuid.uuid4().hex, [ChoiceSoFar()], prompt_ids=[1], policy_version=0)
    asked = Asked(dict(body), "played", ChatRequest(messages=[]), bool(body.get("stream")))
    writer = dialect().reply(sampled, asked, ServedModel("played", TokenText(str)))
    if asked.stream:
        return StreamingResponse(_events(sampled, writer, deltas), media_type="text/event-stream")
    for delta in deltas:
        sampled.add(delta)
    return Response(to_json(writer.whole()), media_type="application/json")


async def _events(sampled: Sampled, writer: ReplyWriter, deltas: Iterable[Delta]) -> AsyncIterator[bytes]:
    yield writer.opening()
    for delta in deltas:
        sampled.add(delta)
        yield writer.pieces([delta])
        await asyncio.sleep(0)
    yield writer.ending()
