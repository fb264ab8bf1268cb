"""Shared parts of strict reading: values of options, messages and tools, each checked, each refused by
name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from reprlib import Repr
from typing import Any, Final

from lightning_core.dialects.lenient import Json
from lightning_core.dialects.upstream import Shaping
from lightning_core.errors import ApiError
from lightning_core.records.types import Sampling
from lightning_core.texts.json_text import JsonError, read_json

COLDEST: Final = 0.01
"""The lowest temperature above 0 that is sampled at, as by vLLM. Apps that ask for less mean greedy, and
float32 does not hold every logit divided by less."""
MOST_BIASES: Final = 1024
MOST_TOP_LOGPROBS: Final = 20
MOST_STOPS: Final = 64
LONGEST_STOP: Final = 256
"""Characters. Stop strings are looked for after every token, on the gateway's event loop."""


def read_object(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises ApiError if there is none."""
    try:
        body = read_json(content)
    except JsonError as error:
        raise ApiError(f"the request body can't be read as JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError("the request body must be a JSON object", code="invalid_json")
    return body


def temperature_and_top_p(
    body: dict[str, Any], sampling: Sampling | None, hottest: float = 2.0
) -> tuple[float, float]:
    """How to sample: as the app asks, or as `sampling` says where it is given. Below COLDEST it is greedy.

    A `top_p` of 1 in `sampling` leaves the app its own.
    """
    temperature = number(body, "temperature", 0.0, hottest)
    top_p = number(body, "top_p", 0.0, 1.0)
    if top_p == 0.0:
        raise invalid("top_p", "top_p must be above 0")
    if sampling is not None:
        temperature = sampling.temperature
        top_p = sampling.top_p if sampling.top_p < 1.0 else top_p
    temperature = 1.0 if temperature is None else temperature
    return temperature if temperature >= COLDEST else 0.0, 1.0 if top_p is None else top_p


def check_continued(messages: list[Json]) -> bool:
    """True. Raises ApiError for a conversation whose end can't be continued."""
    last, param = messages[-1], f"messages[{len(messages) - 1}]"
    if last.get("role") != "assistant":
        raise invalid(
            param, f"{param} is not the assistant's, so there is nothing to continue; see the last message"
        )
    if last.get("tool_calls") or not last.get("content"):
        raise unsupported(param, f"{param} can't be continued: it must hold text and no call of a tool")
    return True


def shaping(body: dict[str, Any]) -> Shaping:
    """Returns the request's changes of the distribution beside temperature and `top_p`."""
    top_k = integer(body, "top_k", -1)
    repetition = number(body, "repetition_penalty", 0.01, 100.0)
    return Shaping(
        top_k=min(max(top_k or 0, 0), 2**31),  # what no vocabulary has
        min_p=number(body, "min_p", 0.0, 1.0) or 0.0,
        presence=number(body, "presence_penalty", -2.0, 2.0) or 0.0,
        frequency=number(body, "frequency_penalty", -2.0, 2.0) or 0.0,
        repetition=1.0 if repetition is None else repetition,
        bias=_bias(body),
    )


def _bias(body: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    given = mapping(body, "logit_bias") or {}
    if len(given) > MOST_BIASES:
        raise invalid("logit_bias", f"logit_bias has {len(given)} tokens; give at most {MOST_BIASES}")
    if unknown := next((name for name in given if not re.fullmatch("[0-9]{1,9}", name)), None):
        raise invalid("logit_bias", f"logit_bias names {short(unknown)}, which is no token id")
    return tuple((int(name), number(given, name, -100.0, 100.0) or 0.0) for name in sorted(given))


def seed(body: dict[str, Any], sampling: Sampling | None) -> int | None:
    """The app's own seed; none where `sampling` is given, or every member of a group would say the same."""
    given = integer(body, "seed")
    return given if sampling is None else None


def stop_texts(body: dict[str, Any], name: str) -> tuple[str, ...]:
    """Texts that end a reply."""
    value = body.get(name)
    stop = [value] if isinstance(value, str) else (value or [])
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise invalid(name, f"{name} must be a string or a list of non-empty strings, not {short(value)}")
    if len(stop) > MOST_STOPS:
        raise invalid(name, f"{name} has {len(stop)} strings; give at most {MOST_STOPS}")
    longest = max(map(len, stop), default=0)
    if longest > LONGEST_STOP:
        raise invalid(name, f"{name} has a string of {longest} characters; give at most {LONGEST_STOP}")
    return tuple(stop)


def text(body: dict[str, Any], name: str) -> str | None:
    """A string; None if it was not given."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(name, f"{name} must be a string, not {short(value)}")
    return value


def integer(body: dict[str, Any], name: str, least: int | None = None, most: int | None = None) -> int | None:
    """An integer within its bounds; None if it was not given."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(name, f"{name} must be an integer, not {short(value)}")
    _check_range(name, value, least, most)
    return value


def number(body: dict[str, Any], name: str, least: float, most: float) -> float | None:
    """A number within its bounds; None if it was not given."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise invalid(name, f"{name} must be a number, not {short(value)}")
    _check_range(name, value, least, most)
    return float(value)


def _check_range(name: str, value: float, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise invalid(name, f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise invalid(name, f"{name} must be at most {most}, not {value}")


def flag(body: dict[str, Any], name: str) -> bool:
    """A boolean, false unless given."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"{name} must be true or false, not {short(value)}")
    return bool(value)


def mapping(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An object; None if it was not given."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object, not {short(value)}")
    return value


def read_content(value: Any, param: str, parts: Mapping[str, str]) -> str | None:
    """Content as text; `parts` gives the field that holds the text of each type of part.

    The parts are joined by newlines, as vLLM does for templates that expect a string.
    """
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(param, f"{param} must be a string or a list of parts, not {type(value).__name__}")
    return "\n".join(_part(part, f"{param}[{index}]", parts) for index, part in enumerate(value))


def _part(part: Any, param: str, parts: Mapping[str, str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in parts:
        raise unsupported(param, f"{param} has the type {short(kind)}; this model reads text only")
    text = part.get(parts[kind])
    if not isinstance(text, str):
        raise invalid(param, f"{param}.{parts[kind]} must be a string")
    return text


def unsupported(param: str, message: str) -> ApiError:
    """A valid option that no engine here can honour: refused by name rather than ignored."""
    return ApiError(message, code="unsupported_value", param=param)


def invalid(param: str, message: str) -> ApiError:
    """A value that the API itself does not allow."""
    return ApiError(message, code="invalid_value", param=param)


def missing(param: str, message: str | None = None) -> ApiError:
    """A field that must be given."""
    return ApiError(message or f"{param} is missing", code="missing_required_parameter", param=param)


def string(item: Json, name: str, param: str) -> str:
    """A string that must be given; `param` says where the item stands."""
    value = item.get(name)
    if value is None:
        raise missing(f"{param}.{name}")
    if not isinstance(value, str):
        raise invalid(f"{param}.{name}", f"{param}.{name} must be a string, not {type(value).__name__}")
    return value


def short(value: Any) -> str:
    """A value as an error message quotes it: of a large one the beginning."""
    quoted = _QUOTE.repr(value)
    return quoted if len(quoted) <= 80 else quoted[:79] + "…"


def _quote() -> Repr:
    quote = Repr()
    quote.maxstring = quote.maxother = quote.maxlong = 200
    quote.maxlist = quote.maxdict = quote.maxlevel = 20
    return quote


_QUOTE: Final = _quote()
