"""Server-sent events merged to the whole reply that they stand for, one merger per dialect.

The SDKs have such code for what their own stream helpers show; it reads their typed events, at a hundred
times the cost, while what is wanted here is JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

Json = dict[str, Any]
_DONE: Final = b"[DONE]"
_END: Final[Json] = {}
"""Stands for the word with which OpenAI's streams end."""
RESPONSE_ENDED: Final = ("completed", "incomplete", "failed", "cancelled")
"""The statuses of a Responses reply to which nothing is added any more."""


def merge(dialect: str, body: bytes) -> tuple[Json, bool]:
    """The reply, and whether the word came with which OpenAI's streams end. The bytes may end anywhere."""
    events = list(_events(body))
    ended = bool(events) and events[-1] is _END
    return _MERGE[dialect](event for event in events if event is not _END), ended


def error_of(reply: Json) -> str | None:
    """The message of an error in OpenAI's or Anthropic's form."""
    error = reply.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or error.get("type"))
    return str(error) if error else None


def _events(body: bytes) -> Iterator[Json]:
    """The data of server-sent events. The last one may have been cut off: then it never was."""
    data: list[bytes] = []
    for line in body.splitlines():
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield from _event(b"\n".join(data))
            data = []
    if data:
        try:
            yield from _event(b"\n".join(data))
        except orjson.JSONDecodeError:
            return


def _event(data: bytes) -> Iterator[Json]:
    if data.startswith(_DONE):
        yield _END
    elif isinstance(event := orjson.loads(data), dict):
        yield event


def _merge_chat(events: Iterable[Json]) -> Json:
    merged: Json = {}
    choices: dict[int, Json] = {}
    for event in events:
        merged.update((name, event[name]) for name in ("id", "error") if event.get(name))
        for part in event.get("choices") or ():
            choice = choices.setdefault(
                part.get("index") or 0, {"index": part.get("index") or 0, "message": {}}
            )
            choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
            _add_delta(choice["message"], part.get("delta") or {})
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


def _merge_completions(events: Iterable[Json]) -> Json:
    merged: Json = {}
    choices: dict[int, Json] = {}
    for event in events:
        merged.update((name, event[name]) for name in ("id", "error") if event.get(name))
        for part in event.get("choices") or ():
            choice = choices.setdefault(part.get("index") or 0, {"index": part.get("index") or 0, "text": ""})
            choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
            choice["text"] += part.get("text") or ""
    return {**merged, "choices": [choices[index] for index in sorted(choices)]}


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
