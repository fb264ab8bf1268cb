"""A recorded call as an Anthropic message: one JSON object, or the events that build it up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.recording import ChoiceSoFar, Recording, by_choice
from lightning_core.gateway.refusals import Refusal
from lightning_core.gateway.upstream import Delta
from lightning_core.gateway.wire import typed_event
from lightning_core.json_text import JsonError, read_written

_ERRORS: Final = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
    }
)
_REASONS: Final = MappingProxyType({"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"})


def error_body(refusal: Refusal) -> dict[str, Any]:
    """An error in Anthropic's form."""
    error = {"type": _ERRORS.get(refusal.status, "api_error"), "message": str(refusal)}
    return {"type": "error", "error": error, "request_id": None}


class AnthropicReply:
    """Writes the replies to one call."""

    def __init__(self, recording: Recording, model: str) -> None:
        self._recording = recording
        self._model = model
        self._blocks = 0
        """Content blocks begun so far."""
        self._open = False
        """Whether the last of them is a text that may go on."""

    def whole(self) -> dict[str, Any]:
        """The whole reply."""
        choice = self._choice
        return self._message([_block(block) for block in choice.blocks()], **_end(choice))

    def opening(self) -> bytes:
        """The message, before it has any content."""
        message = self._message([], stop_reason=None, stop_sequence=None)
        return typed_event({"type": "message_start", "message": message})

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """The events of what was just sampled."""
        return b"".join(
            self._text(block) if isinstance(block, str) else self._tool_use(block)
            for choice in by_choice(deltas).values()
            for block in choice.blocks()
        )

    def ending(self) -> bytes:
        """The end of the last block, why the message has ended, and its end."""
        end = {"type": "message_delta", "delta": _end(self._choice), "usage": self._usage()}
        return self._close() + typed_event(end) + typed_event({"type": "message_stop"})

    def failing(self, refusal: Refusal) -> bytes:
        """The error, as the last event."""
        return typed_event(error_body(refusal))

    @property
    def _choice(self) -> ChoiceSoFar:
        return self._recording.choices[0]

    def _message(self, content: list[dict[str, Any]], **end: Any) -> dict[str, Any]:
        return {
            "id": self._recording.reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **end,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self._recording.tokens_read,
            "output_tokens": self._recording.tokens_written,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }

    def _text(self, piece: str) -> bytes:
        begin = b"" if self._open else self._begin({"type": "text", "text": ""})
        self._open = True
        return begin + self._event("content_block_delta", delta={"type": "text_delta", "text": piece})

    def _tool_use(self, call: dict[str, Any]) -> bytes:
        use = _block(call)
        written = json.dumps(use["input"], ensure_ascii=False)
        return b"".join(
            (
                self._close(),
                self._begin({**use, "input": {}}),
                self._event(
                    "content_block_delta", delta={"type": "input_json_delta", "partial_json": written}
                ),
                self._event("content_block_stop"),
            )
        )

    def _begin(self, block: dict[str, Any]) -> bytes:
        self._blocks += 1
        return self._event("content_block_start", content_block=block)

    def _close(self) -> bytes:
        """End the text that is open, if one is."""
        if not self._open:
            return b""
        self._open = False
        return self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return typed_event({"type": kind, "index": self._blocks - 1, **fields})


def _block(block: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    function = block["function"]
    return {
        "type": "tool_use",
        "id": block["id"],
        "name": function["name"],
        "input": _input(function["arguments"]),
    }


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object. What is none, which only other engines let through, keeps its words."""
    try:
        value = read_written(arguments)
    except JsonError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _end(choice: ChoiceSoFar) -> dict[str, str | None]:
    reason = "stop_sequence" if choice.stop is not None else _REASONS.get(choice.finish_reason or "")
    return {"stop_reason": reason, "stop_sequence": choice.stop}
