"""Completions: `POST /v1/completions`, a raw prompt without a chat template.

A recorded call has one prompt, text or token ids. So a request with several is as many calls, which are
answered together: choice i of prompt p has the index p * n + i, in a stream too. No `max_tokens` means 16
tokens, as OpenAI documents it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lightning_core.dialects.base import (
    ChoiceSoFar,
    Conversation,
    Dialect,
    Owner,
    Request,
    Sampled,
    by_choice,
)
from lightning_core.dialects.constraints import FROM_VLLM_STRUCTURED, read_constraint
from lightning_core.dialects.lenient import Json, assistant, choice, merge_choices
from lightning_core.dialects.options import (
    FROM_SERVERS,
    FROM_VLLM,
    LABELS,
    RESHAPING,
    STREAMING,
    Options,
    honoured,
    ignored,
    refused,
)
from lightning_core.dialects.strict import (
    flag,
    integer,
    invalid,
    mapping,
    read_object,
    seed,
    shaping,
    short,
    stop_texts,
    temperature_and_top_p,
    text,
    unsupported,
)
from lightning_core.dialects.upstream import ChatRequest, Constraint, Delta
from lightning_core.dialects.writing import ServedModel, event, to_json
from lightning_core.errors import ApiError
from lightning_core.records.types import Choice, Sampling

_ALL_REPLIES: Final = "every reply is recorded, so ask for n of them and choose"
OPTIONS: Final = Options(
    honoured("prompt", "model", "n", "max_tokens", "temperature", "top_p", "stop", "seed", "logprobs"),
    STREAMING,
    honoured("return_token_ids", note=FROM_VLLM),
    honoured("stream_usage", note="as `stream_options.include_usage`"),
    FROM_SERVERS,
    FROM_VLLM_STRUCTURED,
    LABELS,
    RESHAPING,
    refused("the prompt is not repeated; put it before the reply yourself", echo=(False,)),
    honoured("best_of", note=f"as `n`; another number is refused: {_ALL_REPLIES}"),
    ignored("a raw prompt has no chat template to add to", "add_special_tokens"),
    refused("nothing can be written before a given end; leave it out", suffix=("",)),
)
_MAX_TOKENS: Final = 16
_MOST_PROMPTS: Final = 128
_MOST_LOGPROBS: Final = 5
MOST_CHOICES: Final = 128
"""Choices that one request may ask for."""


class Completions(Dialect):
    """The dialect."""

    name = "completions"
    sdk = "openai"
    path = "/completions"
    id_prefix = "cmpl-"
    prompt = "prompt"
    options = OPTIONS
    operation = "text_completion"

    def read(self, content: bytes, sampling: Sampling | None, owner: Owner) -> Request:
        body = OPTIONS.read(content)
        mapping(body, "stream_options")
        flag(body, "return_token_ids")
        temperature, top_p = temperature_and_top_p(body, sampling)
        chat = ChatRequest(
            messages=[],
            prompt=_prompt(body.get("prompt")),
            n=_count(body),
            max_tokens=integer(body, "max_tokens", 1) or _MAX_TOKENS,
            temperature=temperature,
            top_p=top_p,
            shaping=shaping(body),
            stop=stop_texts(body, "stop"),
            seed=seed(body, sampling),
            top_logprobs=integer(body, "logprobs", 0, _MOST_LOGPROBS) or 0,
            constraint=self.constraint(body),
        )
        return Request(raw=body, model=text(body, "model") or "", chat=chat, stream=flag(body, "stream"))

    def split(self, content: bytes) -> list[bytes]:
        body = read_object(content)
        prompts = body.get("prompt")
        if not isinstance(prompts, list) or len(prompts) < 2 or _is_id(prompts[0]):
            return [content]
        if len(prompts) > _MOST_PROMPTS:
            raise invalid(
                "prompt", f"prompt holds {len(prompts)} prompts; send at most {_MOST_PROMPTS} at once"
            )
        return [to_json({**body, "prompt": prompt}) for prompt in prompts]

    def joined(self, sampled: Sequence[Sampled], request: Request, model: ServedModel) -> CompletionReply:
        return CompletionReply(sampled, request, model)

    def reply(self, sampled: Sampled, request: Request, model: ServedModel) -> CompletionReply:
        return self.joined([sampled], request, model)

    @staticmethod
    def conversation(request: Json) -> Conversation:
        raise unsupported("prompt", "completions have a raw prompt, which is no chat")

    @classmethod
    def constraint(cls, request: Json) -> Constraint | None:
        return read_constraint(request, None, None)

    @staticmethod
    def merge(events: Iterable[Json]) -> Json:
        def add(so_far: Json, part: Json) -> None:
            so_far["text"] = so_far.get("text", "") + (part.get("text") or "")

        return merge_choices(events, add)

    @staticmethod
    def choices(reply: Json) -> list[Choice]:
        return [
            choice(part.get("index") or 0, part.get("finish_reason"), assistant(part.get("text"), []))
            for part in reply.get("choices") or ()
        ]


def _count(body: Json) -> int:
    """How many replies are asked for."""
    count = integer(body, "n", 1, MOST_CHOICES) or 1
    best = integer(body, "best_of", 1)
    if best not in (None, 1, count):
        raise unsupported("best_of", f"best_of = {best} is not supported here: {_ALL_REPLIES}")
    return count


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, list) and value and not _is_id(value[0]):
        if len(value) > 1:  # see `split`
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
    """Writes the reply to the calls of one request, one for each of its prompts."""

    def __init__(self, sampled: Sequence[Sampled], request: Request, model: ServedModel) -> None:
        self._sampled = sampled
        self._choices = [(call, choice) for call in sampled for choice in call.choices]
        self._tokens = model.tokens
        self._raw = request.raw
        self._with_logprobs = request.raw.get("logprobs") is not None
        self._frame: Json = {
            "id": Completions.id_prefix + sampled[0].call_id,
            "object": "text_completion",
            "created": int(sampled[0].started_at),
            "model": request.model or model.name,
        }
        self._offsets = [0] * len(self._choices)
        """Where in its text the next token of each choice begins."""

    def whole(self) -> Json:
        """The whole reply."""
        choices = [
            self._choice(index, choice, choice.finish_reason)
            for index, (_, choice) in enumerate(self._choices)
        ]
        return {**self._chunk(choices), "usage": token_usage(*self._sampled)}

    def opening(self) -> bytes:
        """Nothing: the first piece of text begins the reply."""
        return b""

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """Writes the deltas as events, at most one chunk for each choice."""
        return b"".join(
            event(self._chunk([self._choice(index, choice, None)]))
            for index, choice in by_choice(deltas).items()
            if choice.parts or self._with_logprobs or self._raw.get("return_token_ids")
        )

    def ending(self) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        nothing = ChoiceSoFar()
        chunks = [
            event(self._chunk([self._choice(index, nothing, choice.finish_reason)]))
            for index, (_, choice) in enumerate(self._choices)
        ]
        if wants_usage(self._raw):
            chunks.append(event({**self._chunk([]), "usage": token_usage(*self._sampled)}))
        return b"".join((*chunks, b"data: [DONE]\n\n"))

    def failing(self, error: ApiError) -> bytes:
        """The error, as the last chunk."""
        return event(error.body())

    def _chunk(self, choices: list[Json]) -> Json:
        answering = self._choices[choices[0]["index"] if choices else 0][0]
        return {**self._frame, "system_fingerprint": fingerprint(answering), "choices": choices}

    def _choice(self, index: int, choice: ChoiceSoFar, finish_reason: str | None) -> Json:
        reply: Json = {
            "index": index,
            "text": choice.text,
            "logprobs": self._logprobs(index, choice) if self._with_logprobs and choice.token_ids else None,
            "finish_reason": finish_reason,
        }
        if self._raw.get("return_token_ids"):
            reply |= {"prompt_token_ids": self._choices[index][0].prompt_ids, "token_ids": choice.token_ids}
        return reply

    def _logprobs(self, index: int, choice: ChoiceSoFar) -> Json:
        texts = [self._tokens.text(token) for token in choice.token_ids]
        offsets = []
        for token_text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token_text)
        tops = [  # of several with one text, such as halves of characters, the most probable stays
            {self._tokens.text(token): logprob for token, logprob in reversed(top)}
            for top in choice.top_logprobs
        ]
        return {
            "tokens": texts,
            "token_logprobs": choice.logprobs,
            "top_logprobs": tops or None,
            "text_offset": offsets,
        }


def wants_usage(raw: Json) -> bool:
    """Whether a stream is to end with the tokens that were read and written."""
    return bool((raw.get("stream_options") or {}).get("include_usage") or raw.get("stream_usage"))


def token_usage(*sampled: Sampled) -> Json:
    """The tokens that the calls of a request have read and written."""
    read, written = (
        sum(getattr(call, name) for call in sampled) for name in ("tokens_read", "tokens_written")
    )
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(call.cached for call in sampled)},
    }


def fingerprint(sampled: Sampled) -> str:
    """The weights that answered, as a reply names them."""
    return f"policy-{sampled.policy_version}"
