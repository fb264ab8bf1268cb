"""Shared parts of lenient reading: a stream's events, the messages of a chat, the parts of a message, ids.

The SDKs have code that merges streams for their own stream helpers; it reads their typed events, at a hundred
times the cost, while what is wanted here is JSON. Whatever a server leaves out is absent here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from lightning_core.records.types import Choice

Json = dict[str, Any]
Part = dict[str, Any]
Message = dict[str, Any]
"""`{"role", "parts"}`, as in the GenAI conventions. A part is a text, a tool call or its response."""
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_END: Final[Json] = {}
"""Stands for `[DONE]`, with which OpenAI's streams end."""
_ID_FIELDS: Final = frozenset({"tool_call_id", "tool_use_id", "call_id"})
"""Fields that hold the id of a tool call, in any API."""
_CALL_TYPES: Final = frozenset({"tool_use", "function_call", "custom_tool_call"})
"""Types of items that are tool calls, whose own id is in `id`."""


@dataclass(frozen=True, slots=True)
class ObservedReply:
    """A reply, or what of it has arrived, in the form in which the gateway records replies."""

    choices: list[Choice] = field(default_factory=list)
    response_id: str | None = None
    complete: bool = False
    """Whether it came to its end."""
    error: str | None = None
    """The server's error message."""


def read_events(body: bytes) -> tuple[list[Json], bool]:
    """The data of server-sent events, and whether `[DONE]`, the end of OpenAI's streams, was among it.

    The last event may have been cut off: then it is left out.
    """
    *blocks, rest = _BLANK_LINE.split(body)
    events = [_read_event(block) for block in blocks]
    with suppress(orjson.JSONDecodeError):
        events.append(_read_event(rest))
    found = [event for event in events if isinstance(event, dict)]
    return found, bool(found) and found[-1] is _END


def _read_event(block: bytes) -> Any:
    if block.startswith(b"data: ") and b"\n" not in block:
        data = block[6:]
    else:
        lines = (line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:"))
        data = b"\n".join(lines)
    if data.startswith(b"[DONE]"):
        return _END
    return orjson.loads(data) if data else None


def merge_choices(events: Iterable[Json], add: Callable[[Json, Json], None]) -> Json:
    """A reply with choices; `add(choice, part)` adds a chunk's part to its choice."""
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


def error_of(reply: Json) -> str | None:
    """The message of an error in OpenAI's or Anthropic's form."""
    error = reply.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or error.get("type"))
    return str(error) if error else None


def choice(index: int, finish_reason: str | None, message: Json) -> Choice:
    return Choice(index=index, finish_reason=finish_reason, message=message)


def assistant(content: Any, calls: list[Json]) -> Json:
    """The assistant's message of a chat."""
    if calls:
        return {"role": "assistant", "content": content or None, "tool_calls": calls}
    return {"role": "assistant", "content": content or ""}


def tool_call(call_id: str | None, name: str, arguments: str) -> Json:
    """A tool call in a message of a chat."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_message(item: Any) -> Message:
    """A message of a chat, or whatever stands in its place."""
    if not isinstance(item, dict):
        return {"role": "user", "parts": [text_part(item)]}
    if item.get("role") == "tool":
        return {"role": "tool", "parts": [response_part(item.get("tool_call_id"), item.get("content"))]}
    tool_calls = item.get("tool_calls") or []
    asked = [_asked(call) for call in (tool_calls if isinstance(tool_calls, list) else [tool_calls])]
    return {"role": str(item.get("role", "user")), "parts": read_parts(item.get("content")) + asked}


def _asked(call: Any) -> Part:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return text_part(call)
    function = call["function"]
    return call_part(call.get("id"), function.get("name"), function.get("arguments"))


def read_parts(content: Any) -> list[Part]:
    """The parts of a message's content."""
    if isinstance(content, list):
        return [read_part(block) for block in content]
    return [text_part(content)] if content else []


def read_part(block: Any) -> Part:
    """One block of a message's content, as a text if it holds one."""
    if not isinstance(block, dict):
        return text_part(block)
    return text_part(block["text"]) if "text" in block else {"type": str(block.get("type"))}


def text_part(content: Any) -> Part:
    return {"type": "text", "content": as_text(content)}


def call_part(call_id: Any, name: Any, arguments: Any) -> Part:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def response_part(call_id: Any, response: Any) -> Part:
    return {"type": "tool_call_response", "id": call_id, "response": response}


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def with_numbered_ids(request: Any) -> Any:
    """A request in which ids of tool calls are numbered in the order they first appear."""
    return _numbered(request, {})


def _numbered(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_numbered(each, numbers) for each in value]
    if not isinstance(value, dict):
        return value
    named = _ID_FIELDS | ({"id"} if "function" in value or value.get("type") in _CALL_TYPES else set())
    return {
        name: numbers.setdefault(each, f"id {len(numbers)}")
        if name in named and isinstance(each, str)
        else _numbered(each, numbers)
        for name, each in value.items()
    }
