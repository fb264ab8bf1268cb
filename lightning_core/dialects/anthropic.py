"""Anthropic Messages: `POST /v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.dialects import anthropic_tools
from lightning_core.dialects.base import (
    ChoiceSoFar,
    Conversation,
    Dialect,
    Owner,
    Part,
    Request,
    Sampled,
    Thought,
    by_choice,
)
from lightning_core.dialects.constraints import ToolChoice, read_format, read_tools
from lightning_core.dialects.lenient import (
    Json,
    Message,
    assistant,
    call_part,
    choice,
    read_message,
    read_part,
    response_part,
    tool_call,
)
from lightning_core.dialects.lenient import (
    Part as SeenPart,
)
from lightning_core.dialects.options import (
    EFFORT,
    FROM_VLLM,
    RESHAPING,
    Options,
    honoured,
    ignored,
    refused,
)
from lightning_core.dialects.results import in_call_order
from lightning_core.dialects.strict import (
    check_continued,
    flag,
    integer,
    invalid,
    mapping,
    missing,
    shaping,
    short,
    stop_texts,
    temperature_and_top_p,
    text,
)
from lightning_core.dialects.turns import kind_of, read_system, read_turns
from lightning_core.dialects.upstream import ChatRequest, Constraint, Delta
from lightning_core.dialects.writing import ServedModel, typed_event
from lightning_core.errors import ApiError
from lightning_core.records.types import Choice, Sampling
from lightning_core.texts.json_text import JsonError, read_written

OPTIONS: Final = Options(
    honoured(
        *("messages", "model", "max_tokens", "system", "tools", "tool_choice", "temperature", "top_p"),
        *("stop_sequences", "stream"),
    ),
    honoured("chat_template_kwargs", note=FROM_VLLM),
    honoured("output_config", "output_config.format", "output_format"),
    honoured("output_config.effort", note=EFFORT),
    honoured("thinking"),
    honoured("thinking.type", note="`disabled` is the effort `none`; else the model thinks if it can"),
    ignored("max_tokens bounds thinking and reply together", "thinking.budget_tokens"),
    ignored("thinking is given whole", "thinking.display", "thinking.block_binding"),
    ignored("a label for the provider's own records", "metadata", "service_tier", "user_profile_id"),
    ignored("a label for the provider's own records", "workspace_id", "billing_policy"),
    ignored("nothing is paid for", "fallback_credit_token"),
    ignored("prefixes are always reused", "cache_control", "diagnostics"),
    ignored("no request is declined, so no other model stands in", "fallbacks"),
    ignored("it announces options, and each of them is known or refused itself", "betas"),
    ignored("there is one speed", "speed"),
    {name: option for name, option in RESHAPING.items() if name == "top_k"},
    refused("use max_tokens", "output_config.task_budget"),
    refused("tools run in the app; give them as tools", mcp_servers=([],)),
    refused("Anthropic's own servers keep it; leave it out", "container"),
    refused("the policy answers where this gateway runs; leave it out", "inference_geo"),
    refused("it is kept at Anthropic; send the whole conversation as messages", "thread"),
    refused("nothing is cut out of a conversation; leave it out", "compaction"),
    ignored(
        "nothing is cut out of a conversation, and the reply says so: `applied_edits` is empty",
        "context_management",
    ),
)
_HOTTEST: Final = 1.0
"""The highest temperature of this API."""
_THREAD: Final = "thread"
_ERRORS: Final = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
    }
)
_REASONS: Final = MappingProxyType({"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"})
_FINISH_REASONS: Final = MappingProxyType(
    {**{theirs: ours for ours, theirs in _REASONS.items()}, "stop_sequence": "stop"}
)
"""Why a message ended, in the words of a chat. What has no such word keeps its own."""


class Anthropic(Dialect):
    """The dialect."""

    name = "anthropic"
    sdk = "anthropic"
    path = "/messages"
    id_prefix = "msg_"
    prompt = "messages"
    counts = "/count_tokens"
    options = OPTIONS
    instructions = "system"

    def read(self, content: bytes, sampling: Sampling | None, owner: Owner) -> Request:
        return self._request(OPTIONS.read(content), sampling)

    def read_counted(self, content: bytes, owner: Owner) -> Request:
        return self._request({"max_tokens": 1, **OPTIONS.read(content)}, None)

    def _request(self, body: Json, sampling: Sampling | None) -> Request:
        longest = integer(body, "max_tokens", 1)
        if longest is None:
            raise missing("max_tokens")
        messages, tools = self.conversation(body)
        temperature, top_p = temperature_and_top_p(body, sampling, _HOTTEST)
        chat = ChatRequest(
            messages=messages,
            tools=tools,
            max_tokens=longest,
            temperature=temperature,
            top_p=top_p,
            shaping=shaping(body),
            continues=check_continued(messages) if self.continues(body) else False,
            stop=stop_texts(body, "stop_sequences"),
            extra=mapping(body, "chat_template_kwargs") or {},
            effort=_effort(body),
            constraint=self.constraint(body),
            parallel=_tool_choice(body).parallel,
        )
        return Request(raw=body, model=text(body, "model") or "", chat=chat, stream=flag(body, "stream"))

    def reply(self, sampled: Sampled, request: Request, model: ServedModel) -> AnthropicReply:
        return AnthropicReply(sampled, request, request.model or model.name)

    @staticmethod
    def error(error: ApiError) -> Json:
        return _error(error)

    @staticmethod
    def sends_again(error: ApiError) -> bool:
        return error.param == _THREAD

    @classmethod
    def continues(cls, request: Json) -> bool:
        match request.get("messages"):
            case [*_, {"role": "assistant"}]:
                return True
        return False

    @staticmethod
    def conversation(request: Json) -> Conversation:
        messages = [*read_system(request.get("system")), *read_turns(request.get("messages"))]
        return in_call_order(messages, "messages"), _tools(request)

    @classmethod
    def constraint(cls, request: Json) -> Constraint | None:
        config = mapping(request, "output_config") or {}
        form = read_format(config.get("format"), "output_config.format")
        form = form or read_format(request.get("output_format"), "output_format")
        return _tool_choice(request).constraint(_tools(request)) or form

    @staticmethod
    def merge(events: Iterable[Json]) -> Json:
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

    @staticmethod
    def choices(reply: Json) -> list[Choice]:
        blocks = reply.get("content") or []
        texts = [block["text"] for block in blocks if block.get("type") == "text"]
        calls = [
            tool_call(block.get("id"), block["name"], _written(block))
            for block in blocks
            if block.get("type") == "tool_use"
        ]
        reason: Any = reply.get("stop_reason")
        if not blocks and not reason:
            return []
        return [choice(0, _FINISH_REASONS.get(reason, reason), assistant("".join(texts), calls))]

    @staticmethod
    def message(item: Any) -> Message:
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(content, list):
            return read_message(item)
        return {"role": str(item.get("role", "user")), "parts": [_part(block) for block in content]}

    @staticmethod
    def tool_results(item: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool | None]]:
        content = item.get("content")
        for block in content if isinstance(content, list) else ():
            if kind_of(block) == "tool_result" and block.get("tool_use_id"):
                failed = block.get("is_error")
                said = failed if isinstance(failed, bool) else None
                yield str(block["tool_use_id"]), block.get("content"), said

    @staticmethod
    def offered(tool: Mapping[str, Any]) -> tuple[Any, Any]:
        return anthropic_tools.offered(tool)

    @classmethod
    def hosted_tools(cls, request: Mapping[str, Any]) -> list[str]:
        return anthropic_tools.hosted(request.get("tools"))


def _effort(body: Json) -> str | None:
    """How long to think, in OpenAI's words."""
    if (mapping(body, "thinking") or {}).get("type") == "disabled":
        return "none"
    return text(mapping(body, "output_config") or {}, "effort")


def _tools(body: Json) -> list[Json] | None:
    return read_tools(anthropic_tools.functions_of(body.get("tools")), _tool_choice(body))


def _tool_choice(body: Json) -> ToolChoice:
    choice = mapping(body, "tool_choice") or {"type": "auto"}
    parallel = not flag(choice, "disable_parallel_tool_use")
    match choice:
        case {"type": "auto" | "none" as mode}:
            return ToolChoice(mode, parallel=parallel)
        case {"type": "any"}:
            return ToolChoice("required", parallel=parallel)
        case {"type": "tool", "name": str(name)}:
            return ToolChoice("required", named=name, parallel=False)
    raise invalid("tool_choice", f"tool_choice = {short(choice)} is not valid; use auto, any, tool or none")


def _add_to_block(block: Json, delta: Json) -> None:
    if delta.get("type") == "text_delta":
        block["text"] += delta["text"]
    elif delta.get("type") == "input_json_delta":
        block["json"] += delta["partial_json"]


def _written(block: Json) -> str:
    """The arguments of a tool use: as they were streamed, or as a whole reply has them."""
    return block.get("json") or orjson.dumps(block.get("input") or {}).decode()


def _part(block: Any) -> SeenPart:
    match kind_of(block):
        case "tool_use":
            return call_part(block.get("id"), block.get("name"), block.get("input"))
        case "tool_result":
            return response_part(block.get("tool_use_id"), block.get("content"))
    return read_part(block)


def _error(error: ApiError) -> Json:
    """An error in Anthropic's form. After one about `thread`, SDKs go on without threads by themselves."""
    message = str(error)
    if error.too_long is not None:  # clients know it by these words
        message = f"prompt is too long: {error.too_long[0]} tokens > {error.too_long[1]} maximum. {message}"
    other = "invalid_request_error" if error.status < 500 else "api_error"
    described: Json = {"type": _ERRORS.get(error.status, other), "message": message}
    if Anthropic.sends_again(error):
        described["details"] = {"error_code": "thread_unsupported_request", "unsupported": [_THREAD]}
    return {"type": "error", "error": described, "request_id": None}


class AnthropicReply:
    """Writes the replies to one call."""

    def __init__(self, sampled: Sampled, request: Request, model: str) -> None:
        self._sampled = sampled
        self._model = model
        edits: Json = {"context_management": {"applied_edits": []}}
        self._edits = edits if request.raw.get("context_management") else {}
        """The answer to a request's `context_management`."""
        self._blocks = 0
        """Content blocks begun so far."""
        self._open: type | None = None
        """Kind of the last block, if it may go on: a text or a thought."""

    def whole(self) -> Json:
        """The whole reply."""
        choice = self._choice
        return self._message([_block(block) for block in choice.blocks()], **_end(choice), **self._edits)

    def opening(self) -> bytes:
        """The message, before it has any content."""
        message = self._message([], stop_reason=None, stop_sequence=None)
        return typed_event({"type": "message_start", "message": message})

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """The events of what was just sampled."""
        return b"".join(
            self._tool_use(block) if isinstance(block, dict) else self._text(block)
            for choice in by_choice(deltas).values()
            for block in choice.blocks()
        )

    def ending(self) -> bytes:
        """The end of the last block, why the message has ended, and its end."""
        end = {
            "type": "message_delta",
            "delta": _end(self._choice),
            "usage": self._usage(),
            **self._edits,
        }
        return self._close() + typed_event(end) + typed_event({"type": "message_stop"})

    def failing(self, error: ApiError) -> bytes:
        """The error, as the last event."""
        return typed_event(_error(error))

    @property
    def _choice(self) -> ChoiceSoFar:
        return self._sampled.choices[0]

    def _message(self, content: list[Json], **end: Any) -> Json:
        return {
            "id": Anthropic.id_prefix + self._sampled.call_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **end,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self._sampled.tokens_read - self._sampled.cached,
            "output_tokens": self._sampled.tokens_written,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._sampled.cached,
        }

    def _text(self, piece: str | Thought) -> bytes:
        begin = b"" if self._open is type(piece) else self._close() + self._begin(_block(type(piece)("")))
        self._open = type(piece)
        if isinstance(piece, Thought):
            delta = {"type": "thinking_delta", "thinking": piece.text}
        else:
            delta = {"type": "text_delta", "text": piece}
        return begin + self._event("content_block_delta", delta=delta)

    def _tool_use(self, call: Json) -> bytes:
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

    def _begin(self, block: Json) -> bytes:
        self._blocks += 1
        return self._event("content_block_start", content_block=block)

    def _close(self) -> bytes:
        """End the text or thought that is open, if one is."""
        if self._open is None:
            return b""
        self._open = None
        return self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return typed_event({"type": kind, "index": self._blocks - 1, **fields})


def _block(block: Part) -> Json:
    if isinstance(block, Thought):
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if isinstance(block, str):
        return {"type": "text", "text": block}
    function = block["function"]
    return {
        "type": "tool_use",
        "id": block["id"],
        "name": function["name"],
        "input": _input(function["arguments"]),
    }


def _input(arguments: str) -> Json:
    """Arguments as an object. What is none, which only other engines let through, keeps its words."""
    try:
        value = read_written(arguments)
    except JsonError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _end(choice: ChoiceSoFar) -> dict[str, str | None]:
    reason = "stop_sequence" if choice.stop is not None else _REASONS.get(choice.finish_reason or "")
    return {"stop_reason": reason, "stop_sequence": choice.stop}
