"""Conversations of the Responses API: items as messages, and what a request may go on from.

A reply with text and tool calls is one assistant message to the chat template, but several items here, in the
order written. Items that follow one another are joined to that message again, so that the prompt of the next
call begins with exactly the tokens of this one.

Each attempt of a rollout has its own: one rollout can't go on from another's response. They live in this
gateway's memory; how many attempts, how many responses of each, and how many bytes of all is bounded, and the
least recently used go first.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lightning_core.dialects.base import Owner
from lightning_core.dialects.compaction import read_summary
from lightning_core.dialects.lenient import Json
from lightning_core.dialects.strict import invalid, missing, read_content, short, string, unsupported
from lightning_core.dialects.tools import CALLS, OUTPUTS, call_of_item, result_id, result_text
from lightning_core.dialects.writing import to_json
from lightning_core.errors import ApiError

_ROLES: Final = ("assistant", "developer", "system", "user")
_TEXT_PARTS: Final = MappingProxyType({"input_text": "text", "output_text": "text", "refusal": "refusal"})
_OWN_ID: Final = re.compile(r"(?:apc|cmp|ctc|fc|lsh|msg|rs|sh)_(.+)_\d+")
_MOST_ATTEMPTS: Final = 4096
_MOST_RESPONSES: Final = 1024
_MOST_BYTES: Final = 256 * 2**20
"""Bytes of all kept conversations, as JSON."""
_UNKNOWN: Final = (
    "is not known to this attempt of the rollout: it was made elsewhere, with store=false, too long ago, or "
    "before the gateway was restarted"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The items that one request and its reply added to a conversation."""

    before: Turn | None
    messages: tuple[dict[str, Any], ...]
    items: tuple[Json, ...] = ()
    """The reply as the app was given it."""


def messages_of(turn: Turn | None) -> list[dict[str, Any]]:
    """The conversation up to a turn and with it."""
    turns = []
    while turn is not None:
        turns.append(turn.messages)
        turn = turn.before
    return [message for messages in reversed(turns) for message in messages]


class Conversations:
    """The turns that can be gone on from."""

    def __init__(
        self,
        *,
        attempts: int = _MOST_ATTEMPTS,
        responses: int = _MOST_RESPONSES,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._attempts = attempts
        self._responses = responses
        self._free = most_bytes
        self._turns: OrderedDict[Owner, OrderedDict[str, tuple[Turn, int]]] = OrderedDict()
        """Each turn with its bytes."""
        self._lock = threading.Lock()
        """A long request is read in a thread of its own."""

    def keep(self, owner: Owner, response_id: str, turn: Turn) -> None:
        """Let later requests go on from this response."""
        size = len(to_json([turn.messages, turn.items]))
        with self._lock:
            turns = self._turns.setdefault(owner, OrderedDict())
            self._turns.move_to_end(owner)
            self._free += turns.pop(response_id, (None, 0))[1] - size
            turns[response_id] = turn, size
            while len(self._turns) > self._attempts or (self._free < 0 and len(self._turns) > 1):
                _, dropped = self._turns.popitem(last=False)
                self._free += sum(each for _, each in dropped.values())
            while len(turns) > self._responses or (self._free < 0 and len(turns) > 1):
                self._free += turns.popitem(last=False)[1][1]

    def get(self, owner: Owner, response_id: str) -> Turn:
        """The turn that ended in this response. Raises ApiError if it is not known here."""
        if (found := self._find(owner, response_id)) is not None:
            return found
        raise ApiError(
            f"response {response_id!r} {_UNKNOWN}; send the whole conversation as input, without "
            "previous_response_id",
            status=404,
            code="previous_response_not_found",
            param="previous_response_id",
        )

    def with_items(self, owner: Owner, value: Any) -> Any:
        """A request's `input` with the items themselves where it refers to those of earlier replies. Raises
        ApiError for one that is not known here."""
        if not isinstance(value, list):
            return value
        return [
            self._item(owner, item, f"input[{index}]") if _is_reference(item) else item
            for index, item in enumerate(value)
        ]

    def _item(self, owner: Owner, reference: Json, param: str) -> Json:
        name = string(reference, "id", param)
        if (call_id := _reply_of(reference)) and (found := self._find(owner, f"resp_{call_id}")):
            for item in found.items:
                if item["id"] == name:
                    return item
        raise ApiError(
            f"{param}: item {name!r} {_UNKNOWN}; send the item itself (in the AI SDK: `store: false`)",
            status=404,
            code="item_not_found",
            param=param,
        )

    def _find(self, owner: Owner, response_id: str) -> Turn | None:
        with self._lock:
            turns = self._turns.get(owner, OrderedDict())
            if response_id not in turns:
                return None
            self._turns.move_to_end(owner)
            turns.move_to_end(response_id)
            return turns[response_id][0]


# items ------------------------------------------------------------------------------------
def read_items(value: Any) -> list[Json]:
    """The messages that a request's `input` adds to its conversation."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise invalid("input", "input must be a string or a list with at least one item")
    messages: list[Json] = []
    before = None
    for index, item in enumerate(value):
        reply = _reply_of(item)
        _add(messages, item, f"input[{index}]", goes_on=None in (reply, before) or reply == before)
        before = reply
    if not messages:
        raise invalid("input", "input holds no message")
    return messages


def _is_reference(item: Any) -> bool:
    """Its type may be left out: nothing else is an id alone."""
    return isinstance(item, dict) and (item.get("type") == "item_reference" or item.keys() == {"id"})


def _reply_of(item: Any) -> str | None:
    """Returns the common part of the ids in one of this gateway's replies; None for any other item."""
    found = _OWN_ID.fullmatch(str(item.get("id"))) if isinstance(item, dict) else None
    return found and found[1]


def _add(messages: list[Json], item: Any, param: str, *, goes_on: bool) -> None:
    """`goes_on`: the item may be of the same reply as the one before."""
    if not isinstance(item, dict):
        raise invalid(param, f"{param} must be an object, not {type(item).__name__}")
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item, param, goes_on)
        case str(kind) if kind in CALLS:
            _add_tool_call(messages, item, param, goes_on)
        case str(kind) if kind in OUTPUTS:
            _add_result(messages, item, param)
        case "compaction":
            messages.append(read_summary(item, param))
        case "reasoning":
            _add_thought(messages, item, param)
        case kind:
            raise unsupported(
                param,
                f"{param} has the type {short(kind)}; served are messages, reasoning, calls of the "
                "app's own tools and their outputs",
            )


def _add_message(messages: list[Json], item: Json, param: str, goes_on: bool) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise invalid(f"{param}.role", f"{param}.role must be one of {_ROLES}, not {short(role)}")
    content = _content(item, "content", param)
    begun = goes_on and messages and messages[-1].keys() & {"tool_calls", "reasoning_content"}
    if role == "assistant" and begun:
        messages[-1]["content"] = (messages[-1]["content"] or "") + content
    else:
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _add_thought(messages: list[Json], item: Json, param: str) -> None:
    """The thought begins the assistant's next message. One that is only encrypted has no text for a model."""
    told = "content" if item.get("content") else "summary"
    parts = {"reasoning_text": "text", "summary_text": "text"}
    thought = read_content(item.get(told), f"{param}.{told}", parts)
    if thought:
        messages.append({"role": "assistant", "content": None, "reasoning_content": thought})


def _add_tool_call(messages: list[Json], item: Json, param: str, goes_on: bool) -> None:
    call = call_of_item(item, param)
    if not goes_on or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _add_result(messages: list[Json], item: Json, param: str) -> None:
    told = {"call_id": result_id(item), "output": result_text(item)}
    content = _content(told, "output", param)
    messages.append({"role": "tool", "tool_call_id": string(told, "call_id", param), "content": content})


def _content(item: Json, name: str, param: str) -> str:
    content = read_content(item.get(name), f"{param}.{name}", _TEXT_PARTS)
    if content is None:
        raise missing(f"{param}.{name}")
    return content
