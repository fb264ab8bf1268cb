"""Whether a tool failed, told from what the model was told of it.

Anthropic's `tool_result` says so (`is_error`). In the other dialects a result is only text, and an error is
what frameworks and people write for one: a text that begins with "Error:", "An error occurred", "Error
executing", a traceback or the name of an exception, or a JSON object with an `error` or a true `is_error`.
Any other text is a result, even if it speaks of errors further on.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from lightning_core.air.base import Outcome
from lightning_core.types import ToolErrorType

_FAILED: Final = re.compile(
    r"\s*(?:error\s*:|an error occurred\b|error (?:calling|executing|invoking|running|while)\b"
    r"|traceback \(most recent call last\)|(?-i:[\w.]*(?:Error|Exception)\s*[:(]))",
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"\btime(?:d|s)?[ -]?out\b|TimeoutError|TimeoutExpired", re.IGNORECASE)
_EMPTY: Final = frozenset(("", "[]", "{}", "()", '""', "''", "set()"))
"""A tool that answers `None` or `null` has no answer to give, which is not the same."""


def outcome_of(result: str | None, error: str | None, error_type: ToolErrorType | None) -> Outcome:
    """The outcome of a run; an error without a type, or of the type "raised", may be a time-out."""
    if error is None:
        return Outcome(result)
    if error_type in (None, "raised"):
        error_type = "timed_out" if _TIMED_OUT.search(error) else "raised"
    return Outcome(None, error, error_type)


def read_result(content: Any, failed: bool | None = None) -> Outcome:
    """The outcome that a result of the wire tells; `failed` if the dialect says so, None if it can't."""
    text = _text(content)
    error = _error(text) if failed is None else text if failed else None
    return outcome_of(text, error or ("it failed" if failed else None), None)


def is_empty(result: str | None) -> bool:
    """Whether a tool found nothing."""
    return result is not None and "".join(result.split()) in _EMPTY


def _error(text: str) -> str | None:
    if _FAILED.match(text):
        return text.strip()
    if not text.lstrip().startswith("{"):
        return None
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if told.get("error"):
        return str(told["error"])
    return text if True in (told.get("is_error"), told.get("isError")) else None


def _text(content: Any) -> str:
    """A result's text: it may come as a string or in blocks."""
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
