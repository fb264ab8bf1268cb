"""An OpenAI-compatible server on a real socket. It plays the model and notes every request.

It obeys marks in the prompt: `fail=2` answers the first two attempts (of one nonce or key) with 500,
`slow=0.2` waits, `calls=a,b+c` asks for tool a, then for b and c at once, then answers in words.
With `broken=a,b` the arguments for these tools are not valid JSON.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lightning_core.testing.truth import Tagged, mistakes, read_marks
from lightning_core.tracing.headers import AGENT, CALL, ROLLOUT, decode_agent

Message = dict[str, Any]


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
            marks=read_marks(_as_chat(self.path, self.body)),
            rollout=self.headers.get(ROLLOUT),
            agent=decode_agent(agent) if agent is not None else None,
            call=self.headers.get(CALL),
        )


@dataclass
class ModelServer:
    """What the server was sent, and how many requests it held at once."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    gather: int = 0
    """Hold all answers until so many requests wait at once (or 90 s have passed)."""
    peak: int = 0
    """The most requests that waited at once."""
    _waiting: int = 0
    _attempts: Counter[str] = field(default_factory=Counter)
    _together: asyncio.Event = field(default_factory=asyncio.Event)

    def tagged(self) -> list[Tagged]:
        return [request.tagged() for request in self.seen]

    def mistakes(self) -> list[str]:
        return mistakes(self.tagged())

    def agents(self) -> Counter[str | None]:
        """Requests by the agent they were tagged with."""
        return Counter(request.agent for request in self.tagged())

    async def answer(self, request: Request) -> Response:
        body = await request.json() if request.method == "POST" else {}
        marks = read_marks(_as_chat(request.url.path, body))
        failed = self._fails(marks)
        self.seen.append(
            Seen(request.url.path, request.url.query, dict(request.headers), body, 500 if failed else 200)
        )
        if failed:
            error = {"error": {"message": "injected", "type": "server_error"}}
            return JSONResponse(error, 500, headers={"retry-after-ms": "1"})
        await self._wait(float(marks.get("slow", 0)))
        return _reply(request.url.path, body, marks)

    def _fails(self, marks: Mapping[str, str]) -> bool:
        key = marks.get("key") or marks.get("nonce", "")
        self._attempts[key] += 1
        return self._attempts[key] <= int(marks.get("fail", 0))

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
        await asyncio.sleep(seconds)
        self._waiting -= 1


@contextmanager
def serving(gather: int = 0) -> Iterator[ModelServer]:
    """A running server on a free port of this machine."""
    model = ModelServer(gather=gather)
    app = Starlette(routes=[Route("/{path:path}", model.answer, methods=["GET", "POST"])])
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none", backlog=4096)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    model.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield model
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()


def _reply(path: str, body: Mapping[str, Any], marks: Mapping[str, str]) -> Response:
    if path.endswith("/models"):
        return JSONResponse({"object": "list", "data": []})
    chat = _as_chat(path, body)
    message = _message(chat.get("messages", ()), marks, _required(body))
    if path.endswith("/responses"):
        return _respond(message, bool(body.get("stream")))
    if body.get("stream"):
        return StreamingResponse(_events(message), media_type="text/event-stream")
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return JSONResponse({**_envelope("chat.completion"), "choices": [choice], "usage": usage})


def _as_chat(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A Responses request as the chat messages it stands for; any other as it is."""
    if not path.endswith("/responses") or isinstance(body.get("input"), str):
        return body
    messages = [{"role": "system", "content": body.get("instructions")}]
    for item in body.get("input", ()):
        called = item.get("type") == "function_call"
        messages.append({"tool_calls": [{"function": item}]} if called else item)
    return {"messages": messages}


def _required(body: Mapping[str, Any]) -> dict[str, list[str]]:
    """The arguments that each tool must be given; all are taken to be strings."""
    tools = [tool.get("function", tool) for tool in body.get("tools") or ()]
    return {tool["name"]: (tool.get("parameters") or {}).get("required", []) for tool in tools}


def _message(history: Any, marks: Mapping[str, str], required: Mapping[str, list[str]]) -> Message:
    steps = [step.split("+") for step in marks.get("calls", "").split(",") if step]
    names = {name for step in steps for name in step}
    asked = [
        call
        for message in history
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] in names
    ]
    broken = marks.get("broken", "").split(",")
    for step in steps:
        if not asked:
            calls = [_call(name, required.get(name, []), name in broken) for name in step]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        asked = asked[len(step) :]
    return {"role": "assistant", "content": "it is done"}


def _call(name: str, required: list[str], broken: bool) -> Message:
    arguments = '{"broken": ' if broken else json.dumps(dict.fromkeys(required, "asked"))
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def _finish(message: Message) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


async def _events(message: Message) -> AsyncIterator[str]:
    envelope = _envelope("chat.completion.chunk")
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
    deltas: list[Message] = [{"role": "assistant", "content": ""}]
    deltas += [{"tool_calls": calls}] if calls else [{"content": word} for word in ("it ", "is ", "done")]
    for delta in deltas:
        yield _event({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        await asyncio.sleep(0)
    end = {"index": 0, "delta": {}, "finish_reason": _finish(message)}
    yield _event({**envelope, "choices": [end]})
    yield "data: [DONE]\n\n"


def _event(data: Message) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _envelope(kind: str) -> Message:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": 0, "model": "played"}


def _respond(message: Message, stream: bool) -> Response:
    response = _response_object(message)
    if stream:
        return StreamingResponse(_response_events(response), media_type="text/event-stream")
    return JSONResponse(response)


async def _response_events(response: Message) -> AsyncIterator[str]:
    events: list[Message] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(response["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": response})
    for number, event in enumerate(events):
        yield f"event: {event['type']}\n" + _event({**event, "sequence_number": number})
        await asyncio.sleep(0)


def _response_object(message: Message) -> Message:
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": 0,
        "model": "played",
        "status": "completed",
        "output": _output_items(message),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _output_items(message: Message) -> list[Message]:
    if calls := message.get("tool_calls"):
        return [
            {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], **call["function"]}
            for call in calls
        ]
    text = {"type": "output_text", "text": message["content"], "annotations": []}
    return [
        {
            "type": "message",
            "id": f"msg_{uuid.uuid4().hex}",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    ]
