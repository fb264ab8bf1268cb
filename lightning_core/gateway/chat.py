"""Chat Completions: `POST /v1/chat/completions`.

Three parameters are accepted although nothing enforces them, since SDKs send them unasked:
`parallel_tool_calls` and a tool's `strict` are preferences that a model without constrained decoding
may miss, and `stream_options.include_obfuscation` pads chunks, which is left out. `reasoning_effort`
does change what is sampled and has no equal here: it is refused (see `chat_template_kwargs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.gateway.access import Caller
from lightning_core.gateway.fields import (
    Fields,
    flag,
    integer,
    mapping,
    seed,
    stop_texts,
    temperature_and_top_p,
    text,
)
from lightning_core.gateway.logprobs import TokenText
from lightning_core.gateway.messages import read_messages, read_tools
from lightning_core.gateway.recording import ChoiceSoFar, Recording, TextBody, by_choice
from lightning_core.gateway.refusals import Refusal, invalid
from lightning_core.gateway.upstream import ChatRequest, Delta
from lightning_core.gateway.wire import event, to_json
from lightning_core.types import Sampling

_FIELDS: Final = Fields(
    served=frozenset(
        (
            *("messages", "model", "tools", "tool_choice", "n", "max_tokens", "max_completion_tokens"),
            *("temperature", "top_p", "stop", "seed", "logprobs", "top_logprobs", "stream"),
            *("stream_options", "chat_template_kwargs", "return_token_ids"),
        )
    ),
    harmless=frozenset(
        (
            *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction"),
            *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "parallel_tool_calls"),
        )
    ),
    neutral=MappingProxyType(
        {
            "response_format": ({"type": "text"},),
            "frequency_penalty": (0,),
            "presence_penalty": (0,),
            "logit_bias": ({},),
            "modalities": (["text"],),
            "verbosity": ("medium",),
            "audio": (),
            "functions": (),
            "function_call": (),
            "moderation": (),
            "reasoning_effort": (),
            "web_search_options": (),
            "top_k": (-1, 0),
            "min_p": (0,),
            "repetition_penalty": (1,),
        }
    ),
)
MOST_CHOICES: Final = 128
MOST_TOP_LOGPROBS: Final = 20


class Chat:
    """The dialect."""

    name = "chat"
    prompt = "messages"

    def __init__(self, tokens: TokenText, default_model: str) -> None:
        self._tokens = tokens
        self._default_model = default_model

    def read(self, content: bytes, caller: Caller) -> TextBody:
        return read_chat(content, caller.sampling)

    def reply(self, recording: Recording, body: TextBody) -> ChatReply:
        return ChatReply(recording, body, self._tokens, self._default_model)

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.body()


def read_chat(content: bytes, sampling: Sampling | None) -> TextBody:
    """The request in `content`; `sampling`, where given, takes the place of the app's own.

    Raises Refusal for what is not valid or can't be honoured.
    """
    body = _FIELDS.read(content)
    options = mapping(body, "stream_options")
    return TextBody(
        raw=body,
        model=text(body, "model") or "",
        request=_request(body, sampling),
        stream=flag(body, "stream"),
        include_usage=bool(options and options.get("include_usage")),
        logprobs=flag(body, "logprobs"),
        return_token_ids=flag(body, "return_token_ids"),
    )


def _request(body: dict[str, Any], sampling: Sampling | None) -> ChatRequest:
    temperature, top_p = temperature_and_top_p(body, sampling)
    longest = integer(body, "max_completion_tokens", 1)
    return ChatRequest(
        messages=read_messages(body.get("messages")),
        tools=read_tools(body.get("tools"), body.get("tool_choice")),
        n=integer(body, "n", 1, MOST_CHOICES) or 1,
        max_tokens=longest if longest is not None else integer(body, "max_tokens", 1),
        temperature=temperature,
        top_p=top_p,
        stop=stop_texts(body, "stop"),
        seed=seed(body, sampling),
        top_logprobs=_top_logprobs(body),
        extra=mapping(body, "chat_template_kwargs") or {},
    )


def _top_logprobs(body: dict[str, Any]) -> int:
    wanted = integer(body, "top_logprobs", 0, MOST_TOP_LOGPROBS) or 0
    if wanted and not body.get("logprobs"):
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    return wanted


class ChatReply:
    """Writes the replies to one call."""

    def __init__(self, recording: Recording, body: TextBody, tokens: TokenText, default_model: str) -> None:
        self._recording = recording
        self._tokens = tokens
        self._body = body
        self._frame: dict[str, Any] = {
            "id": recording.reply_id,
            "object": "chat.completion.chunk" if self._body.stream else "chat.completion",
            "created": int(recording.started_at),
            "model": self._body.model or default_model,
        }
        self._tool_calls = [0] * self._body.request.n
        """Tool calls streamed so far in each choice."""

    def whole(self) -> dict[str, Any]:
        """The whole reply."""
        reply = {
            **self._frame,
            "system_fingerprint": fingerprint(self._recording),
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._recording.choices)],
            "usage": token_usage(self._recording),
        }
        if self._body.return_token_ids:
            reply["prompt_token_ids"] = self._recording.prompt_ids
        return reply

    def opening(self) -> bytes:
        """The first chunk of each choice, which says who speaks."""
        self._frame["system_fingerprint"] = fingerprint(self._recording)
        prompt: dict[str, Any] = {}
        if self._body.return_token_ids:
            prompt["prompt_token_ids"] = self._recording.prompt_ids
        delta = {"role": "assistant", "content": ""}
        first = self._chunk(0, delta, **prompt)
        return first + b"".join(self._chunk(index, delta) for index in range(1, self._body.request.n))

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """What the deltas add to the reply, at most one chunk for each choice."""
        return b"".join(self._piece(index, choice) for index, choice in by_choice(deltas).items())

    def ending(self) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        chunks = [
            self._chunk(index, {}, finish_reason=choice.finish_reason)
            for index, choice in enumerate(self._recording.choices)
        ]
        if self._body.include_usage:
            chunks.append(event({**self._frame, "choices": [], "usage": token_usage(self._recording)}))
        return b"".join((*chunks, b"data: [DONE]\n\n"))

    def failing(self, refusal: Refusal) -> bytes:
        """The error, as the last chunk."""
        return event(refusal.body())

    def _choice(self, index: int, choice: ChoiceSoFar) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "index": index,
            "message": orjson.Fragment(to_json({**choice.message(), "refusal": None})),
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
        }
        if self._body.return_token_ids:
            reply["token_ids"] = choice.token_ids
        return reply

    def _piece(self, index: int, choice: ChoiceSoFar) -> bytes:
        delta: dict[str, Any] = {}
        if choice.text:
            delta["content"] = choice.text
        if choice.tool_calls:
            first = self._tool_calls[index]
            self._tool_calls[index] += len(choice.tool_calls)
            delta["tool_calls"] = [{"index": first + i, **call} for i, call in enumerate(choice.tool_calls)]
        token_ids = choice.token_ids if self._body.return_token_ids else None
        logprobs = self._logprobs(choice) if choice.token_ids else None
        if not delta and not token_ids and not logprobs:
            return b""
        return self._chunk(index, delta, logprobs=logprobs, token_ids=token_ids)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        token_ids: list[int] | None = None,
        **fields: Any,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": orjson.Fragment(to_json(delta)),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if token_ids:
            choice["token_ids"] = token_ids
        if self._body.include_usage:
            fields["usage"] = None
        return event({**self._frame, **fields, "choices": [choice]})

    def _logprobs(self, choice: ChoiceSoFar) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        content = self._tokens.logprobs(choice.token_ids, choice.logprobs, choice.top_logprobs)
        return {"content": content, "refusal": None}


def token_usage(recording: Recording) -> dict[str, int]:
    """The tokens that a call has read and written."""
    read, written = recording.tokens_read, recording.tokens_written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def fingerprint(recording: Recording) -> str:
    """The weights that answered, as a reply names them."""
    return f"policy-{recording.policy_version}"
