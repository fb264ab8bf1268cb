"""Whether a tool failed and whether it found nothing, told from what the model was told of it.

Anthropic's `tool_result` says whether the tool failed (`is_error`). In the other dialects a result is only
text, and tools return texts that speak of errors: logs, pages, measures. So a text is a failure only if

- its first line begins as frameworks begin one: "Error: ", "Error executing tool", "An error occurred while
  running the tool", "Tool ... timed out", a traceback, or the name of an exception and what it said; but not
  if further lines are dated or graded as those of a log are;
- or it is a JSON object that says so: an `error` that is a text or an object with something in it, or true;
  a true `is_error` or `isError`; `ok` or `success` false; the `status` "error".

A result is empty only if it says so: an empty list or object, or an object whose rows (results, items, ...)
are none. No text at all says nothing: so answers a tool that does something, and one that returns None.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from lightning_core.air.base import Outcome
from lightning_core.types import ToolErrorType

_FAILED: Final = re.compile(
    r"""Error:(?=\s|$)
    |Error\ (?:when\ |while\ )?(?:calling|executing|invoking|running)\ (?:the\ )?(?:tool|function)\b
    |An\ error\ occurred\ (?:when|while)\ (?:calling|executing|invoking|parsing|running)\ (?:the\ )?tool\b
    |I\ encountered\ an\ error\ while\ trying\ to\ use\ the\ tool\b
    |Tool\ \S+\ timed\ out\ after\b
    |Tool\ not\ found$
    |Traceback\ \(most\ recent\ call\ last\)
    |[\w.]*(?:Error|Exception)(?::\ |\()""",
    re.VERBOSE,
)
_LOGGED: Final = re.compile(
    r"\W*(?:\d{2,4}[-/:]\d\d|(?:trace|debug|info|notice|warn(?:ing)?|error|critical|fatal)\b)",
    re.IGNORECASE,
)
"""The beginning of a line of a log: a date or time, or how grave it is."""
_TIMED_OUT: Final = re.compile(r"\btime(?:d|s)?[ -]?out\b|TimeoutError|TimeoutExpired", re.IGNORECASE)
_SAID: Final = (("error", True), ("is_error", True), ("isError", True), ("ok", False), ("success", False))
_NONE: Final = frozenset(("[]", "{}", "()", "set()"))
_FOUND: Final = ("data", "documents", "hits", "items", "matches", "records", "results", "rows")
"""Where a result that is an object keeps what was found."""


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
    """Whether a tool says that it found nothing."""
    text = "".join((result or "").split())
    if text in _NONE:
        return True
    found = [value for name, value in _object(text).items() if name in _FOUND]
    return [] in found and not any(found)


def _error(text: str) -> str | None:
    first, *more = text.strip().splitlines() or [""]
    if _FAILED.match(first):
        return None if any(map(_LOGGED.match, more)) else text.strip()
    told = _object(text)
    error = told.get("error")
    if isinstance(error, str | dict) and error:
        return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    return (
        text
        if any(told.get(name) is value for name, value in _SAID) or told.get("status") == "error"
        else None
    )


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a text is; an empty one if it is none."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _text(content: Any) -> str:
    """A result's text: it may come as a string or in blocks."""
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
