"""Responses: `POST /v1/responses`.

A response is one sampled turn: the app runs its own tools (see `tools`), and hosted ones are not offered.
`previous_response_id` goes on from a response that this gateway gave to the same attempt and still
remembers, and so does a reference to one of its items (see `conversations`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

from lightning_core.dialects.base import (
    Conversation,
    Dialect,
    Owner,
    ReplyWriter,
    Request,
    Sampled,
)
from lightning_core.dialects.compaction import asking
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
from lightning_core.dialects.responses_reply import ID_PREFIX, CompactReply, ResponseReply
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
    item_type,
    read_offers,
    result_id,
    result_text,
)
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.dialects.writing import ServedModel
from lightning_core.errors import ApiError
from lightning_core.records.types import Choice, Sampling

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
_ENDED: Final = ("completed", "incomplete", "failed", "cancelled")
"""The statuses of a response to which nothing is added any more."""
_REASONS: Final = MappingProxyType({"max_output_tokens": "length"})


class Responses(Dialect):
    """The dialect."""

    name = "responses"
    sdk = "openai"
    path = "/responses"
    id_prefix = ID_PREFIX
    prompt = "input"
    counts: ClassVar[str | None] = "/input_tokens"
    options = OPTIONS
    instructions = "instructions"

    def __init__(self, conversations: Conversations | None = None) -> None:
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
        return [Compact(self._conversations)]

    def reply(self, sampled: Sampled, request: Request, model: ServedModel) -> ReplyWriter:
        return ResponseReply(sampled, request, model)

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

    def reply(self, sampled: Sampled, request: Request, model: ServedModel) -> ReplyWriter:
        return CompactReply(sampled, request, model)


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
