"""What a hosted model replied, in the form in which the gateway records replies.

A reply arrives as one JSON object or as events, which `streams` merges to the object they stand for; one
reader per dialect makes of it the assistant messages of a chat. Whatever a server leaves out is absent
here too; JSON of quite another shape raises TypeError, LookupError, AttributeError or ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.tracing.streams import RESPONSE_ENDED, Json, error_of, merge
from lightning_core.types import Choice


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, or what of it has arrived."""

    choices: list[Choice] = field(default_factory=list)
    response_id: str | None = None
    complete: bool = False
    """Whether it came to its end."""
    error: str | None = None
    """What the server said went wrong."""


def read_reply(dialect: str, body: bytes, *, streamed: bool) -> Reply:
    """The reply of these bytes; of a stream, they may end anywhere."""
    if not body:
        return Reply()
    if not streamed:
        return _reply(dialect, orjson.loads(body), ended=True)
    reply, ended = merge(dialect, body)
    return _reply(dialect, reply, ended=ended)


def _reply(dialect: str, reply: Json, *, ended: bool) -> Reply:
    choices = _CHOICES[dialect](reply)
    given = reply.get("id")  # some servers number their replies
    return Reply(
        choices=choices,
        response_id=None if given is None else str(given) or None,
        complete=ended or (bool(choices) and all(choice.finish_reason for choice in choices)),
        error=error_of(reply),
    )


def _chat_choices(reply: Json) -> list[Choice]:
    return [
        _choice(part.get("index") or 0, part.get("finish_reason"), _chat_message(part.get("message") or {}))
        for part in reply.get("choices") or ()
    ]


def _chat_message(given: Json) -> Json:
    said = {name: value for name, value in given.items() if value and name != "tool_calls"}
    calls = [
        _tool_call(call.get("id"), **{"name": "", "arguments": "", **call["function"]})
        for call in given.get("tool_calls") or ()
        if call.get("function")
    ]
    return {**said, **_message(given.get("content"), calls)}


def _completions_choices(reply: Json) -> list[Choice]:
    return [
        _choice(part.get("index") or 0, part.get("finish_reason"), _message(part.get("text"), []))
        for part in reply.get("choices") or ()
    ]


def _responses_choices(reply: Json) -> list[Choice]:
    items = reply.get("output") or []
    texts = [part.get("text") or "" for item in items for part in _parts(item)]
    calls = [
        _tool_call(item.get("call_id"), item["name"], item["arguments"])
        for item in items
        if item.get("type") == "function_call"
    ]
    ended = reply.get("status") in RESPONSE_ENDED
    if not items and not ended:
        return []
    reason = (reply.get("incomplete_details") or {}).get("reason")
    finish = _REASONS.get(reason, reason) or ("tool_calls" if calls else "stop")
    return [_choice(0, finish if ended else None, _message("".join(texts), calls))]


def _parts(item: Json) -> list[Json]:
    return (item.get("content") or []) if item.get("type") == "message" else []


def _anthropic_choices(reply: Json) -> list[Choice]:
    blocks = reply.get("content") or []
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    calls = [
        _tool_call(block.get("id"), block["name"], _arguments(block))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    reason = reply.get("stop_reason")
    if not blocks and not reason:
        return []
    return [_choice(0, _REASONS.get(reason, reason), _message("".join(texts), calls))]


def _arguments(block: Json) -> str:
    return block.get("json") or orjson.dumps(block.get("input") or {}).decode()


_REASONS: Final[Mapping[str | None, str]] = MappingProxyType(
    {
        "max_output_tokens": "length",
        "max_tokens": "length",
        "end_turn": "stop",
        "stop_sequence": "stop",
        "tool_use": "tool_calls",
    }
)
"""Why a reply ended, in the words of a chat. What has no such word keeps its own."""


_CHOICES: Final[Mapping[str, Callable[[Json], list[Choice]]]] = MappingProxyType(
    {
        "chat": _chat_choices,
        "completions": _completions_choices,
        "responses": _responses_choices,
        "anthropic": _anthropic_choices,
    }
)


def _choice(index: int, finish_reason: str | None, message: Json) -> Choice:
    return Choice(index=index, finish_reason=finish_reason, message=message)


def _message(content: Any, calls: list[Json]) -> Json:
    if calls:
        return {"role": "assistant", "content": content or None, "tool_calls": calls}
    return {"role": "assistant", "content": content or ""}


def _tool_call(call_id: str | None, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
