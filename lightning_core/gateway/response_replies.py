"""A recorded call as a response: one JSON object, or the events that build it up.

Each text is a message item and each tool call a function_call item, in the order written. The events of
an item end before those of the next begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from lightning_core.gateway.recording import Recording, by_choice
from lightning_core.gateway.refusals import Refusal
from lightning_core.gateway.upstream import Delta
from lightning_core.gateway.wire import typed_event


class ResponseReply:
    """Writes the replies to one call."""

    def __init__(self, recording: Recording, model: str, remember: Callable[[str], None] | None) -> None:
        """`remember` is given the response's id once the reply is complete."""
        self._recording = recording
        self._id = recording.reply_id
        self._remember = remember
        self._asked = _echo(recording, model)
        self._output: list[dict[str, Any]] = []
        """The items so far; of one that is open, as it was added."""
        self._text: list[str] | None = None
        """The pieces of the message that is open."""
        self._events = 0

    def whole(self) -> dict[str, Any]:
        """The whole reply."""
        blocks = self._recording.choices[0].blocks() or [""]
        self._output = [self._item(index, block) for index, block in enumerate(blocks)]
        return self._complete()

    def opening(self) -> bytes:
        """The response, before it has any output."""
        response = self._response("in_progress")
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
            )
        )

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """The events of what was just sampled."""
        return b"".join(
            self._text_piece(block) if isinstance(block, str) else self._close() + self._call(block)
            for choice in by_choice(deltas).values()
            for block in choice.blocks()
        )

    def ending(self) -> bytes:
        """The end of the last item and the whole response."""
        events = b"" if self._output else self._open()
        events += self._close(last=True)
        response = self._complete()
        return events + self._event(f"response.{response['status']}", response=response)

    def failing(self, refusal: Refusal) -> bytes:
        """The error, in both forms that clients look for."""
        body = refusal.body()
        error = body["error"]
        return self._event("error", **body, **{name: error[name] for name in ("code", "message", "param")})

    def _complete(self) -> dict[str, Any]:
        cut = self._cut
        if cut and self._output[-1]["type"] == "message":
            self._output[-1]["status"] = "incomplete"
        if self._remember is not None:
            self._remember(self._id)
        return {
            **self._response("incomplete" if cut else "completed"),
            "completed_at": None if cut else time.time(),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(),
        }

    @property
    def _cut(self) -> bool:
        return self._recording.choices[0].finish_reason == "length"

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(self._recording.started_at),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._output,
            "usage": None,
            **self._asked,
        }

    def _item(self, index: int, block: str | dict[str, Any]) -> dict[str, Any]:
        if isinstance(block, str):
            return self._message_item(index, "completed", [_text_part(block)])
        return self._call_item(index, "completed", block, block["function"]["arguments"])

    def _message_item(self, index: int, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._recording.caller.call_id}_{index}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _call_item(self, index: int, status: str, call: dict[str, Any], arguments: str) -> dict[str, Any]:
        return {
            "id": f"fc_{self._recording.caller.call_id}_{index}",
            "type": "function_call",
            "status": status,
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": arguments,
        }

    def _text_piece(self, piece: str) -> bytes:
        events = self._open() if self._text is None else b""
        assert self._text is not None
        self._text.append(piece)
        return events + self._part_event("response.output_text.delta", delta=piece, logprobs=[])

    def _open(self) -> bytes:
        self._text = []
        added = self._add(self._message_item(len(self._output), "in_progress", []))
        return added + self._part_event("response.content_part.added", part=_text_part(""))

    def _close(self, *, last: bool = False) -> bytes:
        """End the message that is open, if one is."""
        if self._text is None:
            return b""
        text, self._text = "".join(self._text), None
        item = self._item(len(self._output) - 1, text)
        item["status"] = "incomplete" if last and self._cut else "completed"
        return b"".join(
            (
                self._part_event("response.output_text.done", text=text, logprobs=[]),
                self._part_event("response.content_part.done", part=_text_part(text)),
                self._done(item),
            )
        )

    def _call(self, call: dict[str, Any]) -> bytes:
        arguments = call["function"]["arguments"]
        added = self._add(self._call_item(len(self._output), "in_progress", call, ""))
        item = self._item(len(self._output) - 1, call)
        kind = "response.function_call_arguments"
        return b"".join(
            (
                added,
                self._item_event(f"{kind}.delta", delta=arguments),
                self._item_event(f"{kind}.done", name=item["name"], arguments=arguments),
                self._done(item),
            )
        )

    def _add(self, item: dict[str, Any]) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self, item: dict[str, Any]) -> bytes:
        self._output[-1] = item
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._item_event(kind, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        index = len(self._output) - 1
        return self._event(kind, item_id=self._output[index]["id"], output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        return typed_event({"type": kind, "sequence_number": number, **fields})

    def _usage(self) -> dict[str, Any]:
        read, written = self._recording.tokens_read, self._recording.tokens_written
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _echo(recording: Recording, model: str) -> dict[str, Any]:
    """What a response repeats of its request; the sampling is the one that was really used."""
    raw, request = recording.body.raw, recording.body.request
    as_sent = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "user")
    parallel = raw.get("parallel_tool_calls")
    return {
        **{name: raw.get(name) for name in as_sent},
        "model": model,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tools": raw.get("tools") or [],
        "tool_choice": raw.get("tool_choice") or "auto",
        "parallel_tool_calls": True if parallel is None else parallel,
        "store": raw.get("store") is not False,
        "metadata": raw.get("metadata") or {},
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "reasoning": {"effort": None, "summary": None},
        "background": False,
        "service_tier": "default",
    }
