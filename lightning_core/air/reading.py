"""Reading a rollout's records: which tools its replies asked for, and the outcome of each request.

An outcome has three sources. The first that has one counts, never two of them:

1. the plugin that saw the tool run (`ToolEvent`),
2. a span of the tool's run that failed (`gen_ai.tool.call.id`),
3. the wire: a later request of the rollout tells the model, under the id that the reply gave
   (`Dialect.tool_results`).

Where replies gave one id to several requests, it tells nothing about any of them.

Where the API has a field for it, the result says whether the tool failed. Elsewhere it is only text, and
tools return texts that speak of errors: logs, pages, measures. So a text is a failure only if

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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lightning_core.air.base import Outcome, Records, ToolRequest
from lightning_core.dialects import get_dialect
from lightning_core.records.linking import TOOL_CALL_ID, link
from lightning_core.records.types import Call, Event, Rollout, Span, ToolErrorType, ToolEvent

_Request = tuple[str, str | None]
"""(call id, tool call id)"""
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


def read_records(rollout: Rollout, calls: Sequence[Call], events: Sequence[Event]) -> Records:
    """The records of one rollout, linked by ids."""
    linked = link(calls, events)
    completed = [call for call in calls if call.status == "completed"]
    asked = [(call, *each) for call in completed for each in _asked_tools(call)]
    by_request = Counter((call.id, tool_call_id) for call, tool_call_id, _, _ in asked)
    by_id = Counter(tool_call_id for _, tool_call_id, _, _ in asked)
    seen = {**_failed_spans(linked), **_runs(linked)}
    told = _told(calls)

    def find_outcome(request: _Request) -> Outcome | None:
        if request[1] is None or by_request[request] > 1:
            return None
        return seen.get(request) or (told.get(request[1]) if by_id[request[1]] == 1 else None)

    requests: defaultdict[str, list[ToolRequest]] = defaultdict(list)
    for call, tool_call_id, name, arguments in asked:
        outcome = find_outcome((call.id, tool_call_id))
        requests[call.id].append(ToolRequest(call, tool_call_id, name, arguments, outcome))
    in_order = tuple(request for call in completed for request in requests[call.id])
    return Records(rollout, tuple(calls), tuple(linked), in_order)


def _asked_tools(call: Call) -> Iterator[tuple[str | None, str, str]]:
    """The tools that a call's replies ask for: (id of the request, name, arguments)."""
    for choice in call.choices:
        tool_calls = choice.message.get("tool_calls")
        for each in tool_calls if isinstance(tool_calls, list) else ():
            if isinstance(each, dict) and isinstance(function := each.get("function"), dict):
                tool_call_id = str(each["id"]) if each.get("id") else None
                yield tool_call_id, str(function.get("name") or ""), _arguments(function)


def _arguments(function: dict[str, Any]) -> str:
    given = function.get("arguments")
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=repr)


def _runs(events: Sequence[Event]) -> dict[_Request, Outcome]:
    """Returns the outcomes that the plugins saw. A run that a framework tried again counts as failed only if
    every try failed."""
    tries: defaultdict[_Request, list[Outcome]] = defaultdict(list)
    for event in events:
        if isinstance(event, ToolEvent) and event.call_id and event.tool_call_id:
            outcome = _outcome_of(event.result, event.error, event.error_type)
            tries[event.call_id, event.tool_call_id].append(outcome)
    return {
        request: next((each for each in outcomes if each.error is None), outcomes[-1])
        for request, outcomes in tries.items()
    }


def _failed_spans(events: Sequence[Event]) -> dict[_Request, Outcome]:
    """Spans of tools that failed. Any other says little: a framework may have caught the error."""
    return {
        (span.call_id, str(span.attributes[TOOL_CALL_ID])): _outcome_of(None, span.error or "it failed", None)
        for span in events
        if isinstance(span, Span) and span.call_id and TOOL_CALL_ID in span.attributes
        if span.error is not None
    }


def _told(calls: Sequence[Call]) -> dict[str, Outcome]:
    """Returns the outcomes in later requests to the model, by tool call id, each from its first request."""
    told: dict[str, Outcome] = {}
    before: dict[tuple[str, str], list[Any]] = {}
    for call in calls:
        dialect = get_dialect(call.dialect)
        items = dialect.items(call.request)
        known = _beginning(items, before.get((call.agent, dialect.name)))
        before[call.agent, dialect.name] = items
        for item in items[known:]:
            for tool_call_id, content, failed in dialect.tool_results(item) if isinstance(item, dict) else ():
                if tool_call_id not in told:
                    told[tool_call_id] = _read_result(content, failed)
    return told


def _beginning(items: list[Any], before: list[Any] | None) -> int:
    """How many items the agent's last request held already: conversations grow at their end.

    One item is compared and not all, or the time would grow with the square of the number of calls.
    """
    grown = before is not None and len(items) >= len(before) > 0 and items[len(before) - 1] == before[-1]
    return len(before) if grown and before is not None else 0


def _outcome_of(result: str | None, error: str | None, error_type: ToolErrorType | None) -> Outcome:
    """The outcome of a run; an error without a type, or of the type "raised", may be a time-out."""
    if error is None:
        return Outcome(result)
    if error_type in (None, "raised"):
        error_type = "timed_out" if _TIMED_OUT.search(error) else "raised"
    return Outcome(None, error, error_type)


def _read_result(content: Any, failed: bool | None = None) -> Outcome:
    """The outcome that a result of the wire tells; `failed` if the dialect says so, None if it can't."""
    text = _text(content)
    error = _error(text) if failed is None else text if failed else None
    return _outcome_of(text, error or ("it failed" if failed else None), None)


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
