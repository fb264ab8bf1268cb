"""Completions: `POST /v1/completions`, a raw prompt without a chat template.

A request has one prompt, text or token ids, since one recorded call has one: a batch of prompts is
refused by name. No `max_tokens` means 16 tokens, as OpenAI documents it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.access import Caller
from lightning_core.gateway.chat import MOST_CHOICES, fingerprint, token_usage
from lightning_core.gateway.fields import (
    Fields,
    flag,
    integer,
    mapping,
    seed,
    short,
    stop_texts,
    temperature_and_top_p,
    text,
)
from lightning_core.gateway.logprobs import TokenText
from lightning_core.gateway.recording import ChoiceSoFar, Recording, TextBody, by_choice
from lightning_core.gateway.refusals import Refusal, invalid, unsupported
from lightning_core.gateway.upstream import ChatRequest, Delta
from lightning_core.gateway.wire import event

_FIELDS: Final = Fields(
    served=frozenset(
        (
            *("prompt", "model", "n", "max_tokens", "temperature", "top_p", "stop", "seed", "logprobs"),
            *("stream", "stream_options", "return_token_ids"),
        )
    ),
    harmless=frozenset(("user", "metadata", "service_tier")),
    neutral=MappingProxyType(
        {
            "echo": (False,),
            "best_of": (1,),
            "suffix": ("",),
            "frequency_penalty": (0,),
            "presence_penalty": (0,),
            "logit_bias": ({},),
            "top_k": (-1, 0),
            "min_p": (0,),
            "repetition_penalty": (1,),
        }
    ),
)
_MAX_TOKENS: Final = 16
_MOST_LOGPROBS: Final = 5


class Completions:
    """The dialect."""

    name = "completions"
    prompt = "prompt"

    def __init__(self, tokens: TokenText, default_model: str) -> None:
        self._tokens = tokens
        self._default_model = default_model

    def read(self, content: bytes, caller: Caller) -> TextBody:
        body = _FIELDS.read(content)
        options = mapping(body, "stream_options")
        logprobs = integer(body, "logprobs", 0, _MOST_LOGPROBS)
        temperature, top_p = temperature_and_top_p(body, caller.sampling)
        request = ChatRequest(
            messages=[],
            prompt=_prompt(body.get("prompt")),
            n=integer(body, "n", 1, MOST_CHOICES) or 1,
            max_tokens=integer(body, "max_tokens", 1) or _MAX_TOKENS,
            temperature=temperature,
            top_p=top_p,
            stop=stop_texts(body, "stop"),
            seed=seed(body, caller.sampling),
            top_logprobs=logprobs or 0,
        )
        return TextBody(
            raw=body,
            model=text(body, "model") or "",
            request=request,
            stream=flag(body, "stream"),
            include_usage=bool(options and options.get("include_usage")),
            logprobs=logprobs is not None,
            return_token_ids=flag(body, "return_token_ids"),
        )

    def reply(self, recording: Recording, body: TextBody) -> CompletionReply:
        return CompletionReply(recording, body, self._tokens, body.model or self._default_model)

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.body()


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, list) and value and not _is_id(value[0]):
        if len(value) > 1:
            raise unsupported("prompt", f"prompt holds {len(value)} prompts; send one request for each")
        value = value[0]
    if not value:
        raise invalid("prompt", "prompt must not be empty")
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(map(_is_id, value)):
        raise invalid("prompt", f"prompt must be a string or a list of token ids, not {short(value)}")
    return value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionReply:
    """Writes the replies to one call."""

    def __init__(self, recording: Recording, body: TextBody, tokens: TokenText, model: str) -> None:
        self._recording = recording
        self._body = body
        self._tokens = tokens
        self._frame: dict[str, Any] = {
            "id": recording.reply_id,
            "object": "text_completion",
            "created": int(recording.started_at),
            "model": model,
        }
        self._offsets = [0] * body.request.n
        """Where in its text the next token of each choice begins."""

    def whole(self) -> dict[str, Any]:
        """The whole reply."""
        choices = [
            self._choice(index, choice, choice.finish_reason)
            for index, choice in enumerate(self._recording.choices)
        ]
        return {**self._chunk(choices), "usage": token_usage(self._recording)}

    def opening(self) -> bytes:
        """Nothing: the first piece of text begins the reply."""
        return b""

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """What the deltas add to the reply, at most one chunk for each choice."""
        return b"".join(
            event(self._chunk([self._choice(index, choice, None)]))
            for index, choice in by_choice(deltas).items()
            if choice.parts or self._body.logprobs or self._body.return_token_ids
        )

    def ending(self) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        nothing = ChoiceSoFar()
        chunks = [
            event(self._chunk([self._choice(index, nothing, choice.finish_reason)]))
            for index, choice in enumerate(self._recording.choices)
        ]
        if self._body.include_usage:
            chunks.append(event({**self._chunk([]), "usage": token_usage(self._recording)}))
        return b"".join((*chunks, b"data: [DONE]\n\n"))

    def failing(self, refusal: Refusal) -> bytes:
        """The error, as the last chunk."""
        return event(refusal.body())

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._frame, "system_fingerprint": fingerprint(self._recording), "choices": choices}

    def _choice(self, index: int, choice: ChoiceSoFar, finish_reason: str | None) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "index": index,
            "text": choice.text,
            "logprobs": self._logprobs(index, choice) if self._body.logprobs and choice.token_ids else None,
            "finish_reason": finish_reason,
        }
        if self._body.return_token_ids:
            reply |= {"prompt_token_ids": self._recording.prompt_ids, "token_ids": choice.token_ids}
        return reply

    def _logprobs(self, index: int, choice: ChoiceSoFar) -> dict[str, Any]:
        texts = [self._tokens.text(token) for token in choice.token_ids]
        offsets = []
        for token_text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token_text)
        tops = [{self._tokens.text(token): logprob for token, logprob in top} for top in choice.top_logprobs]
        return {
            "tokens": texts,
            "token_logprobs": choice.logprobs,
            "top_logprobs": tops or None,
            "text_offset": offsets,
        }
