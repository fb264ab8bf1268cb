"""Reading a chat completion request: every parameter is honoured, harmless, or refused by name.

Harmless parameters change nothing in what the model samples (labels, storage, caching, priority).
Three more are accepted although nothing enforces them, since SDKs send them unasked:
`parallel_tool_calls` and a tool's `strict` are preferences that a model without constrained decoding
may miss, and `stream_options.include_obfuscation` pads chunks, which is left out. `reasoning_effort`
does change what is sampled and has no equal here: it is refused (see `chat_template_kwargs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.gateway.messages import read_messages, read_tools
from lightning_core.gateway.refusals import Refusal, invalid, unsupported
from lightning_core.gateway.upstream import ChatRequest
from lightning_core.types import Sampling

_SERVED: Final = frozenset(
    (
        *("messages", "model", "tools", "tool_choice", "n", "max_tokens", "max_completion_tokens"),
        *("temperature", "top_p", "stop", "seed", "logprobs", "top_logprobs", "stream", "stream_options"),
        *("chat_template_kwargs", "return_token_ids"),
    )
)
_HARMLESS: Final = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "parallel_tool_calls"),
    )
)
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
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
)
"""Options that only these values of can be honoured: those that ask for nothing."""
_MOST_CHOICES: Final = 128
_MOST_TOP_LOGPROBS: Final = 20


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A chat completion request: what the engine is asked, and what form the reply has."""

    raw: dict[str, Any]
    """As it was sent."""
    model: str
    request: ChatRequest
    stream: bool
    include_usage: bool
    logprobs: bool
    return_token_ids: bool


def read_chat(content: bytes, sampling: Sampling | None) -> ChatBody:
    """The request in `content`; `sampling`, where given, takes the place of the app's own.

    Raises Refusal for what is not valid or can't be honoured.
    """
    body = _object(content)
    for name in body:
        if name not in _SERVED and name not in _HARMLESS:
            _refuse_unless_neutral(name, body[name])
    model = body.get("model") or ""
    if not isinstance(model, str):
        raise invalid("model", f"model must be a string, not {model!r}")
    options = _mapping(body, "stream_options")
    return ChatBody(
        raw=body,
        model=model,
        request=_request(body, sampling),
        stream=_flag(body, "stream"),
        include_usage=bool(options and options.get("include_usage")),
        logprobs=_flag(body, "logprobs"),
        return_token_ids=_flag(body, "return_token_ids"),
    )


def _request(body: dict[str, Any], sampling: Sampling | None) -> ChatRequest:
    temperature = _number(body, "temperature", 0.0, 2.0)
    top_p = _number(body, "top_p", 0.0, 1.0)
    if top_p == 0.0:
        raise invalid("top_p", "top_p must be above 0")
    seed = _integer(body, "seed")
    if sampling is not None:
        # a seed of the app's own would make every member of a group say the same
        temperature, top_p, seed = sampling.temperature, sampling.top_p, None
    longest = _integer(body, "max_completion_tokens", 1)
    return ChatRequest(
        messages=read_messages(body.get("messages")),
        tools=read_tools(body.get("tools"), body.get("tool_choice")),
        n=_integer(body, "n", 1, _MOST_CHOICES) or 1,
        max_tokens=longest if longest is not None else _integer(body, "max_tokens", 1),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        stop=_stop(body.get("stop")),
        seed=seed,
        top_logprobs=_top_logprobs(body),
        extra=_mapping(body, "chat_template_kwargs") or {},
    )


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Refusal(f"the request body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise Refusal("the request body must be a JSON object", code="invalid_json")
    return body


def _refuse_unless_neutral(name: str, value: Any) -> None:
    if value is None or value in _NEUTRAL.get(name, ()):
        return
    if name in _NEUTRAL:
        raise unsupported(name, f"{name} = {_short(value)} is not supported by this engine; leave {name} out")
    raise Refusal(
        f"{name!r} is not a parameter of this endpoint; leave it out", code="unknown_parameter", param=name
    )


def _top_logprobs(body: dict[str, Any]) -> int:
    wanted = _integer(body, "top_logprobs", 0, _MOST_TOP_LOGPROBS) or 0
    if wanted and not body.get("logprobs"):
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    return wanted


def _stop(value: Any) -> tuple[str, ...]:
    stop = [value] if isinstance(value, str) else (value or [])
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise invalid("stop", f"stop must be a string or a list of non-empty strings, not {_short(value)}")
    return tuple(stop)


def _integer(
    body: dict[str, Any], name: str, least: int | None = None, most: int | None = None
) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(name, f"{name} must be an integer, not {_short(value)}")
    _check_range(name, value, least, most)
    return value


def _number(body: dict[str, Any], name: str, least: float, most: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise invalid(name, f"{name} must be a number, not {_short(value)}")
    _check_range(name, value, least, most)
    return float(value)


def _check_range(name: str, value: float, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise invalid(name, f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise invalid(name, f"{name} must be at most {most}, not {value}")


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"{name} must be true or false, not {_short(value)}")
    return bool(value)


def _mapping(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
