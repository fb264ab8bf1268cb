"""Server-sent events merged to the whole reply that they stand for, one merger per dialect.

The SDKs have such code for what their own stream helpers show; it reads their typed events, at a hundred
times the cost, while what is wanted here is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import orjson

Json = dict[str, Any]
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_END: Final[Json] = {}
"""Stands for the word with which OpenAI's streams end."""
RESPONSE_ENDED: Final = ("completed", "incomplete", "failed", "cancelled")
"""The statuses of a Responses reply to which nothing is added any more."""


def merge(dialect: str, body: bytes) -> tuple[Json, bool]:
    """The reply, and whether the word came with which OpenAI's streams end. The bytes may end anywhere."""
    events = _events(body)
    return _MERGE[dialect](events), bool(events) and events[-1] is _END


def error_of(reply: Json) -> str | None:
    """The message of an error in OpenAI's or Anthropic's form."""
    error = reply.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or error.get("type"))
    return str(error) if error else None


def _events(body: bytes) -> list[Json]:
    """The data of server-sent events. The last one may have been cut off: then it never was."""
    *blocks, rest = _BLANK_LINE.split(body)
    events = [_event(block) for block in blocks]
    with suppress(orjson.JSONDecodeError):
        events.append(_event(rest))
    return [event for event in events if isinstance(event, dict)]


def _event(block: bytes) -> Any:
    if block.startswith(b"data: ") and b"\n" not in block:
        data = block[6:]
    else:
        lines = (line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:"))
        data = b"\n".join(lines)
    if data.startswith(b"[DONE]"):
        return _END
    return orjson.loads(data) if data else None


def _merge_chat(events: Iterable[Json]) -> Json:
    def add(choice: Json, part: Json) -> None:
        _add_delta(choice.setdefault("message", {}), part.get("delta") or {})

    return _merge_choices(events, add)


def _merge_completions(events: Iterable[Json]) -> Json:
    def add(choice: Json, part: Json) -> None:
        choice["text"] = choice.get("text", "") + (part.get("text") or "")

    return _merge_choices(events, add)


def _merge_choices(events: Iterable[Json], add: Callable[[Json, Json], None]) -> Json:
    merged: Json = {}
    choices: dict[int, Json] = {}
    for event in events:
        for name in ("id", "error"):
            if value := event.get(name):
                merged[name] = value
        for part in event.get("choices") or ():
            index = part.get("index") or 0
            choice = choices.get(index) or choices.setdefault(index, {"index": index})
            if reason := part.get("finish_reason"):
                choice["finish_reason"] = reason
            add(choice, part)
    return {**merged, "choices": [choices[index] for index in sorted(choices)]}


def _add_delta(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for part in value or ():
                _add_tool_call(message.setdefault("tool_calls", []), part)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None:
            message[name] = value


def _add_tool_call(calls: list[Json], part: Json) -> None:
    """A part belongs to the call at its `index`; one without, as some servers send them, is a whole call."""
    index = part.get("index")
    call = next((call for call in calls if index is not None and call["index"] == index), None)
    if call is None:
        call = {"index": index, "function": {"name": "", "arguments": ""}}
        calls.append(call)
    call.update((name, part[name]) for name in ("id", "type") if part.get(name))
    for name, text in (part.get("function") or {}).items():
        call["function"][name] = call["function"].get(name, "") + (text or "")


def _merge_responses(events: Iterable[Json]) -> Json:
    """The last event holds the whole response. Until it comes there are the items that are done."""
    response: Json = {}
    items: list[Json] = []
    for event in events:
        match event.get("type"):
            case "response.output_item.done":
                items.append(event["item"])
            case "error":
                response["error"] = {"message": event.get("message") or error_of(event)}
            case _ if isinstance(event.get("response"), dict):
                response = event["response"]
    return response if response.get("status") in RESPONSE_ENDED else {**response, "output": items}


def _merge_anthropic(events: Iterable[Json]) -> Json:
    message: Json = {}
    blocks: dict[int, Json] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                message.update(event["message"])
            case "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            case "content_block_delta":
                _add_to_block(blocks[event["index"]], event["delta"])
            case "message_delta":
                message.update(event["delta"])
            case "error":
                message["error"] = event.get("error")
    return {**message, "content": [blocks[index] for index in sorted(blocks)]}


def _add_to_block(block: Json, delta: Json) -> None:
    if delta.get("type") == "text_delta":
        block["text"] += delta["text"]
    elif delta.get("type") == "input_json_delta":
        block["json"] += delta["partial_json"]


_MERGE: Final[Mapping[str, Callable[[Iterable[Json]], Json]]] = MappingProxyType(
    {
        "chat": _merge_chat,
        "completions": _merge_completions,
        "responses": _merge_responses,
        "anthropic": _merge_anthropic,
    }
)
