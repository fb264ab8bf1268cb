"""How a response is written: whole, or as the events of a stream, in OpenAI's order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.dialects.base import (
    ChoiceSoFar,
    Part,
    Request,
    Sampled,
    Thought,
    by_choice,
)
from lightning_core.dialects.compaction import compacted
from lightning_core.dialects.lenient import (
    Json,
)
from lightning_core.dialects.tools import (
    find_offers,
    item_of_call,
)
from lightning_core.dialects.upstream import Delta
from lightning_core.dialects.writing import ServedModel, typed_event
from lightning_core.errors import ApiError

ID_PREFIX: Final = "resp_"
_LOGPROBS: Final = "message.output_text.logprobs"
"""The others are about OpenAI's own tools, which are refused, or encrypted, as nothing is here."""
_PREFIXES: Final = MappingProxyType(
    {
        "function_call": "fc",
        "custom_tool_call": "ctc",
        "local_shell_call": "lsh",
        "shell_call": "sh",
        "apply_patch_call": "apc",
    }
)
"""How the ids of calls begin, by their type."""
_WRITTEN: Final = MappingProxyType(
    {
        "function_call": ("arguments", "response.function_call_arguments"),
        "custom_tool_call": ("input", "response.custom_tool_call_input"),
    }
)
"""The field of a call that is streamed, and its events."""


class ResponseReply:
    """Writes the replies to one call."""

    def __init__(self, sampled: Sampled, request: Request, model: ServedModel) -> None:
        self._sampled, self._request, self._tokens = sampled, request, model.tokens
        asks = _LOGPROBS in (request.raw.get("include") or ()) or request.chat.top_logprobs
        self._scored = ChoiceSoFar() if asks else None
        """The tokens of the text that is open, if their log-probabilities are asked for."""
        self._fresh = ChoiceSoFar()
        """Additions whose text has not come yet."""
        self._id = ID_PREFIX + sampled.call_id
        self._remember = request.remember
        self._asked = _echo(request, model.name)
        self._offers = find_offers(request.raw.get("tools"))
        self._output: list[Json] = []
        """The items so far; of one that is open, as it was added."""
        self._text: list[str] | None = None
        """The pieces of the message or thought that is open."""
        self._kind: type[str | Thought] = str
        """Which of the two it is."""
        self._events = 0

    def whole(self) -> Json:
        """The whole reply."""
        said, begin = self._sampled.choices[0], 0
        for index, (block, end) in enumerate(said.blocks_with_ends() or [("", 0)]):
            item = self._item(index, block)
            if isinstance(block, str):
                item["content"] = [_text_part(block, self._logprobs(said, begin, end))]
            self._output.append(item)
            begin = end
        return self._complete()

    def opening(self) -> bytes:
        """The response, before it has any output."""
        response = self._response("in_progress")
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """The events of what was just sampled."""
        events = []
        for new in by_choice(deltas).values():
            begin = 0
            for block, end in new.blocks_with_ends():
                self._fresh.add_tokens(new, begin, end)
                begin = end
                if isinstance(block, dict):
                    events.append(self._close() + self._call(block))
                else:
                    events.append(self._text_piece(block))
                self._fresh = ChoiceSoFar()
            self._fresh.add_tokens(new, begin, len(new.token_ids))
        return b"".join(events)

    def _logprobs(self, choice: ChoiceSoFar, begin: int, end: int) -> list[Json]:
        """Returns the log-probabilities of some tokens of a choice, if the request wants them."""
        if self._scored is None:
            return []
        ids, logprobs = choice.token_ids[begin:end], choice.logprobs[begin:end]
        written = self._tokens.logprobs(ids, logprobs, choice.top_logprobs[begin:end])
        found: list[Json] = orjson.loads(orjson.dumps(written))
        return found

    def ending(self) -> bytes:
        """The end of the last item and the whole response."""
        events = b"" if self._output else self._open()
        events += self._close(last=True)
        response = self._complete()
        return events + self._event(f"response.{response['status']}", response=response)

    def failing(self, error: ApiError) -> bytes:
        """The error, in both forms that clients look for."""
        return self._event("error", **error.body(), code=error.code, message=str(error), param=error.param)

    def _complete(self) -> Json:
        cut = self._cut
        if cut and self._output[-1]["type"] == "message":
            self._output[-1]["status"] = "incomplete"
        if self._remember is not None:
            self._remember(self._id, self._sampled.choices[0].message(), self._output)
        return {
            **self._response("incomplete" if cut else "completed"),
            "completed_at": None if cut else time.time(),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(),
        }

    @property
    def _cut(self) -> bool:
        return self._sampled.choices[0].finish_reason == "length"

    def _response(self, status: str) -> Json:
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(self._sampled.started_at),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._output,
            "usage": None,
            **self._asked,
        }

    def _item(self, index: int, block: Part) -> Json:
        """A text, a thought or a tool call as an item that is done."""
        call_id = self._sampled.call_id
        if isinstance(block, dict):
            item = item_of_call(block, self._offers)
            return {"id": f"{_PREFIXES[item['type']]}_{call_id}_{index}", "status": "completed", **item}
        if isinstance(block, Thought):
            own: Json = {"id": f"rs_{call_id}_{index}", "type": "reasoning", "summary": []}
        else:
            own = {"id": f"msg_{call_id}_{index}", "type": "message", "role": "assistant"}
        return {**own, "status": "completed", "content": [_text_part(block)]}

    def _text_piece(self, piece: str | Thought) -> bytes:
        events = b"" if self._text is not None and type(piece) is self._kind else self._close()
        events += self._open(type(piece)) if self._text is None else b""
        assert self._text is not None
        if isinstance(piece, Thought):
            self._text.append(piece.text)
            return events + self._part_event("response.reasoning_text.delta", delta=piece.text)
        self._text.append(piece)
        count = len(self._fresh.token_ids)
        logprobs = self._logprobs(self._fresh, 0, count)
        if self._scored is not None:
            self._scored.add_tokens(self._fresh, 0, count)
        return events + self._part_event("response.output_text.delta", delta=piece, logprobs=logprobs)

    def _open(self, kind: type[str | Thought] = str) -> bytes:
        self._text, self._kind = [], kind
        return self._add(kind(""), content=[]) + self._part_event(
            "response.content_part.added", part=_text_part(kind(""))
        )

    def _close(self, *, last: bool = False) -> bytes:
        """End the message that is open, if one is."""
        if self._text is None:
            return b""
        text, self._text = "".join(self._text), None
        block = self._kind(text)
        item = self._item(len(self._output) - 1, block)
        item["status"] = "incomplete" if last and self._cut else "completed"
        if isinstance(block, Thought):
            done = self._part_event("response.reasoning_text.done", text=text)
        else:
            scored = self._scored or ChoiceSoFar()
            logprobs = self._logprobs(scored, 0, len(scored.token_ids))
            item["content"] = [_text_part(block, logprobs)]
            done = self._part_event("response.output_text.done", text=text, logprobs=logprobs)
        self._scored = None if self._scored is None else ChoiceSoFar()
        (part,) = item["content"]
        return done + self._part_event("response.content_part.done", part=part) + self._done(item)

    def _call(self, call: Json) -> bytes:
        item = self._item(len(self._output), call)
        field, kind = _WRITTEN.get(item["type"], (None, ""))
        if field is None:  # OpenAI has events for parts of these too; clients read the whole item
            return self._add(call) + self._done(item)
        name = {"name": item["name"]} if field == "arguments" else {}
        return b"".join(
            (
                self._add(call, **{field: ""}),
                self._item_event(f"{kind}.delta", delta=item[field]),
                self._item_event(f"{kind}.done", **name, **{field: item[field]}),
                self._done(item),
            )
        )

    def _add(self, block: Part, **blank: Any) -> bytes:
        """Begin an item, without what it will hold."""
        item = {**self._item(len(self._output), block), "status": "in_progress", **blank}
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self, item: Json) -> bytes:
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

    def _usage(self) -> Json:
        read, written = self._sampled.tokens_read, self._sampled.tokens_written
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": self._sampled.cached, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }


class CompactReply(ResponseReply):
    """Writes the reply to a compaction, which is never streamed."""

    def whole(self) -> Json:
        """The items in place of the conversation."""
        return {
            "id": self._id,
            "object": "response.compaction",
            "created_at": int(self._sampled.started_at),
            "output": compacted(self._sampled, self._request),
            "usage": self._usage(),
        }


def _text_part(text: str | Thought, logprobs: Sequence[Json] = ()) -> Json:
    if isinstance(text, Thought):
        return {"type": "reasoning_text", "text": text.text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _echo(request: Request, model: str) -> Json:
    """Returns the fields of the request that a response repeats; the sampling is the one that was really
    used."""
    raw, chat = request.raw, request.chat
    as_sent = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "user")
    parallel = raw.get("parallel_tool_calls")
    return {
        **{name: raw.get(name) for name in as_sent},
        "model": request.model or model,
        "temperature": chat.temperature,
        "top_p": chat.top_p,
        "tools": raw.get("tools") or [],
        "tool_choice": raw.get("tool_choice") or "auto",
        "parallel_tool_calls": True if parallel is None else parallel,
        "store": raw.get("store") is not False,
        "metadata": raw.get("metadata") or {},
        "text": {"format": {"type": "text"}, **(raw.get("text") or {})},
        "truncation": "disabled",
        "reasoning": {"effort": None, "summary": None, **(raw.get("reasoning") or {})},
        "background": False,
        "service_tier": "default",
    }
