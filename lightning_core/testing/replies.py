"""What the gateway double says: tools to call or a few words, in the format that was asked for."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

Message = dict[str, Any]


def reply(path: str, body: Mapping[str, Any], message: Message) -> Response:
    """The message as an answer to a request: chat completions or responses, streamed or whole."""
    if path.endswith("/models"):
        return JSONResponse({"object": "list", "data": []})
    if path.endswith("/responses"):
        return _respond(message, bool(body.get("stream")))
    if body.get("stream"):
        return StreamingResponse(_events(message), media_type="text/event-stream")
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return JSONResponse({**_envelope("chat.completion"), "choices": [choice], "usage": usage})


def compose(messages: Iterable[Message], tools: Iterable[Message], marks: Mapping[str, str]) -> Message:
    """The next message of the script in the `calls` mark, after these; words when it has been played.

    For the tools in the `broken` mark the arguments are not valid JSON.
    """
    steps = [step.split("+") for step in marks.get("calls", "").split(",") if step]
    names = {name for step in steps for name in step}
    required = _required(tools)
    broken = marks.get("broken", "").split(",")
    asked = [
        call
        for message in messages
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] in names
    ]
    for step in steps:
        if not asked:
            calls = [_call(name, required.get(name, []), name in broken) for name in step]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        asked = asked[len(step) :]
    return {"role": "assistant", "content": "it is done"}


def as_chat(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A Responses request as the chat messages it stands for; any other as it is."""
    if not path.endswith("/responses") or isinstance(body.get("input"), str):
        return body
    messages = [{"role": "system", "content": body.get("instructions")}]
    for item in body.get("input", ()):
        called = item.get("type") == "function_call"
        messages.append({"tool_calls": [{"function": item}]} if called else item)
    return {"messages": messages}


def _required(tools: Iterable[Message]) -> dict[str, list[str]]:
    """The arguments that each tool must be given; all are taken to be strings."""
    named = [tool.get("function", tool) for tool in tools]
    return {tool["name"]: (tool.get("parameters") or {}).get("required", []) for tool in named}


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
