"""Responses: `POST /v1/responses`.

A response is one sampled turn: the app runs its own tools (see `tools`), and hosted ones are not offered.
`previous_response_id` goes on from a response that this gateway gave to the same attempt and still
remembers, and so does a reference to one of its items (see `conversations`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

import orjson

from lightning_core.dialects.base import (
    ChoiceSoFar,
    Conversation,
    Dialect,
    Owner,
    Part,
    ReplyWriter,
    Request,
    Sampled,
    Thought,
    by_choice,
)
from lightning_core.dialects.compaction import asking, compacted
from lightning_core.dialects.constraints import (
    FROM_VLLM_STRUCTURED,
    read_constraint,
    read_format,
    read_tool_choice,
    read_tools,
)
from lightning_core.dialects.conversations import Conversations, Turn, messages_of, read_items
from lightning_core.dialects.lenient import (
    Json,
    Message,
    as_text,
    assistant,
    call_part,
    choice,
    error_of,
    read_message,
    response_part,
    tool_call,
)
from lightning_core.dialects.options import (
    CACHING,
    EFFORT,
    FROM_SERVERS,
    FROM_VLLM,
    LABELS,
    RESHAPING,
    STREAMING,
    VERBOSITY,
    Options,
    honoured,
    ignored,
    refused,
)
from lightning_core.dialects.results import in_call_order
from lightning_core.dialects.strict import (
    MOST_TOP_LOGPROBS,
    flag,
    integer,
    invalid,
    mapping,
    shaping,
    short,
    temperature_and_top_p,
    text,
    unsupported,
)
from lightning_core.dialects.tools import (
    CALLS,
    OUTPUTS,
    call_of_item,
    find_hosted,
    find_offers,
    item_of_call,
    item_type,
    read_offers,
    result_id,
    result_text,
)
from lightning_core.dialects.writing import TokenText, typed_event
from lightning_core.errors import ApiError
from lightning_core.types import Choice, Sampling
from lightning_core.upstream import ChatRequest, Constraint, Delta

OPTIONS: Final = Options(
    honoured(
        *("input", "model", "instructions", "tools", "tool_choice", "max_output_tokens", "temperature"),
        *("top_p", "previous_response_id", "text", "text.format", "parallel_tool_calls"),
    ),
    STREAMING,
    honoured("chat_template_kwargs", note=FROM_VLLM),
    FROM_VLLM_STRUCTURED,
    FROM_SERVERS,
    RESHAPING,
    honoured("store", note="with false, no later request can go on from the response, or refer to its items"),
    honoured("include", "top_logprobs"),
    honoured("reasoning"),
    honoured("reasoning.effort", note=EFFORT),
    ignored("reasoning is given whole", "reasoning.summary", "reasoning.generate_summary"),
    ignored("the chat template says what it keeps of earlier reasoning", "reasoning.context"),
    ignored("there is one mode", "reasoning.mode"),
    ignored(VERBOSITY, "text.verbosity"),
    LABELS,
    ignored("a label for the provider's own records", "client_metadata"),
    CACHING,
    ignored("access to OpenAI's own models", "access_programs"),
    ignored("images are refused, so there is none to compress", "image"),
    ignored("it counts OpenAI's own tools, which are refused", "max_tool_calls"),
    refused("a response is given at once; leave it out", background=(False,)),
    refused("nothing is cut out of a conversation; send less, and leave it out", truncation=("disabled",)),
    refused("nothing is cut out of a conversation; leave it out", context_management=([],)),
    refused("it is kept at OpenAI; send the whole conversation as input", "conversation"),
    refused("it is kept at OpenAI; send its text as instructions and input", "prompt"),
    refused("OpenAI's own servers do it; leave it out", "moderation"),
)
_LOGPROBS: Final = "message.output_text.logprobs"
"""The others are about OpenAI's own tools, which are refused, or encrypted, as nothing is here."""
_ENDED: Final = ("completed", "incomplete", "failed", "cancelled")
"""The statuses of a response to which nothing is added any more."""
_REASONS: Final = MappingProxyType({"max_output_tokens": "length"})
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


class Responses(Dialect):
    """The dialect."""

    name = "responses"
    sdk = "openai"
    path = "/responses"
    id_prefix = "resp_"
    prompt = "input"
    counts: ClassVar[str | None] = "/input_tokens"
    options = OPTIONS
    instructions = "instructions"

    def __init__(
        self, tokens: TokenText, default_model: str, conversations: Conversations | None = None
    ) -> None:
        super().__init__(tokens, default_model)
        self._conversations = conversations or Conversations()

    def read(self, content: bytes, sampling: Sampling | None, owner: Owner) -> Request:
        body = OPTIONS.read(content)
        _check_options(body)
        body["input"] = self._conversations.with_items(owner, body.get("input"))
        earlier = text(body, "previous_response_id")  # its instructions held for it alone
        before = None if earlier is None else self._conversations.get(owner, earlier)
        added = read_items(body.get("input"))
        temperature, top_p = temperature_and_top_p(body, sampling)
        chat = ChatRequest(
            messages=in_call_order([*_instructions(body), *messages_of(before), *added], "input"),
            tools=_tools(body),
            max_tokens=integer(body, "max_output_tokens", 1),
            temperature=temperature,
            top_p=top_p,
            shaping=shaping(body),
            extra=mapping(body, "chat_template_kwargs") or {},
            effort=text(mapping(body, "reasoning") or {}, "effort"),
            constraint=self.constraint(body),
            parallel=read_tool_choice(body).parallel,
            top_logprobs=integer(body, "top_logprobs", 0, MOST_TOP_LOGPROBS) or 0,
        )

        def remember(response_id: str, message: Json, items: list[Json]) -> None:
            self._conversations.keep(owner, response_id, Turn(before, (*added, message), tuple(items)))

        return Request(
            raw=body,
            model=text(body, "model") or "",
            chat=chat,
            stream=flag(body, "stream"),
            remember=remember if body.get("store") is None or flag(body, "store") else None,
        )

    def counted(self, tokens: int) -> Json:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def further(self) -> Sequence[Dialect]:
        return [Compact(self._tokens, self._default_model, self._conversations)]

    def reply(self, sampled: Sampled, request: Request) -> ReplyWriter:
        return ResponseReply(sampled, request, self._tokens, request.model or self._default_model)

    @staticmethod
    def conversation(request: Json) -> Conversation:
        if request.get("previous_response_id"):
            raise unsupported(
                "previous_response_id", "of responses that go on from another, the server holds the beginning"
            )
        messages = [*_instructions(request), *read_items(request.get("input"))]
        return in_call_order(messages, "input"), _tools(request)

    @classmethod
    def constraint(cls, request: Json) -> Constraint | None:
        form = read_format((mapping(request, "text") or {}).get("format"), "text.format")
        return read_constraint(request, form, read_tool_choice(request).constraint(_tools(request)))

    @staticmethod
    def merge(events: Iterable[Json]) -> Json:
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
        return response if response.get("status") in _ENDED else {**response, "output": items}

    @staticmethod
    def choices(reply: Json) -> list[Choice]:
        items = reply.get("output") or []
        messages = [item for item in items if item.get("type") == "message"]
        texts = [part.get("text") or "" for item in messages for part in item.get("content") or ()]
        calls = [_seen_call(item) for item in items if item_type(item) in CALLS]
        ended = reply.get("status") in _ENDED
        if not items and not ended:
            return []
        reason: Any = (reply.get("incomplete_details") or {}).get("reason")
        finish = _REASONS.get(reason, reason) or ("tool_calls" if calls else "stop")
        return [choice(0, finish if ended else None, assistant("".join(texts), calls))]

    @staticmethod
    def message(item: Any) -> Message:
        kind = item_type(item)
        if kind in CALLS:
            call = _seen_call(item)
            return {"role": "assistant", "parts": [call_part(call.get("id"), **call["function"])]}
        if kind in OUTPUTS:
            return {"role": "tool", "parts": [response_part(result_id(item), result_text(item))]}
        return read_message(item)

    @staticmethod
    def tool_results(item: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool | None]]:
        if item_type(item) in OUTPUTS and (name := result_id(item)):
            yield str(name), result_text(item), None

    @classmethod
    def offered_tools(cls, request: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
        functions = [offer.function["function"] for offer in find_offers(request.get("tools")).values()]
        return {told["name"]: told.get("parameters") for told in functions}

    @classmethod
    def hosted_tools(cls, request: Mapping[str, Any]) -> list[str]:
        return find_hosted(request.get("tools"))


class Compact(Responses):
    """The endpoint that puts a summary in the place of a conversation (see `compaction`). It differs from the
    other in what the model is asked and in what the app is given."""

    path = "/responses/compact"
    counts: ClassVar[str | None] = None

    def read(self, content: bytes, sampling: Sampling | None, owner: Owner) -> Request:
        return replace(super().read(asking(content), sampling, owner), remember=None)

    def further(self) -> Sequence[Dialect]:
        return ()

    def reply(self, sampled: Sampled, request: Request) -> ReplyWriter:
        return CompactReply(sampled, request, self._tokens, request.model or self._default_model)


def _instructions(body: Json) -> list[Json]:
    instructions = text(body, "instructions")
    return [{"role": "system", "content": instructions}] if instructions else []


def _check_options(body: Json) -> None:
    """Raise ApiError for what a response would have to hold and never does here."""
    mapping(body, "stream_options")
    mapping(body, "metadata")
    include = body.get("include") or []
    if not isinstance(include, list):
        raise invalid("include", "include must be a list")
    for index, name in enumerate(include):
        if not isinstance(name, str):
            raise invalid(f"include[{index}]", f"include[{index}] must be a string, not {short(name)}")


def _tools(body: Json) -> list[Json] | None:
    offers = read_offers(body.get("tools"))
    return read_tools(offers and [offer.function for offer in offers], read_tool_choice(body))


def _seen_call(item: Json) -> Json:
    """A call in a reply or a prompt that was only seen, and may hold anything."""
    blank: Json = {"call_id": item.get("id") or "", "name": "", "arguments": "", "input": "", "action": {}}
    given = {name: value for name, value in item.items() if value is not None}
    try:
        return call_of_item({**blank, "operation": {}, **given}, "item")
    except ApiError:
        return tool_call(item.get("call_id"), str(item.get("name")), as_text(item.get("arguments")))


class ResponseReply:
    """Writes the replies to one call."""

    def __init__(self, sampled: Sampled, request: Request, tokens: TokenText, model: str) -> None:
        self._sampled, self._request, self._tokens = sampled, request, tokens
        asks = _LOGPROBS in (request.raw.get("include") or ()) or request.chat.top_logprobs
        self._scored = ChoiceSoFar() if asks else None
        """The tokens of the text that is open, if their log-probabilities are asked for."""
        self._fresh = ChoiceSoFar()
        """Additions whose text has not come yet."""
        self._id = Responses.id_prefix + sampled.call_id
        self._remember = request.remember
        self._asked = _echo(request, model)
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
        "model": model,
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
