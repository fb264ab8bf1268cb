"""Rules about replies and the tools that they ask for, one function each.

They read the reply, the tools that its request offered, and the outcome of the request (`reading.py`).
`jsonschema` checks arguments. It is imported when arguments are first checked, and is never let fetch a
schema from elsewhere. A schema that is not valid finds nothing wrong: that is no fault of the model's.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from lightning_core.air.base import Outcome, Records, Signal, ToolRequest
from lightning_core.air.reading import is_empty
from lightning_core.dialects import get_dialect
from lightning_core.dialects.upstream import Constraint
from lightning_core.errors import ApiError
from lightning_core.records.types import Call, ToolErrorType

Schema = Mapping[str, Any]


def tool_raised(records: Records) -> Iterator[Signal]:
    """The tool was run and failed."""
    return _failed(records, "raised")


def timed_out(records: Records) -> Iterator[Signal]:
    """The tool took too long."""
    return _failed(records, "timed_out")


def unknown_tool(records: Records) -> Iterator[Signal]:
    """There is no such tool: the framework says so, or the request offered others and it did not run."""
    yield from _failed(records, "unknown_tool")
    for request in records.requests:
        offered = get_dialect(request.call.dialect).offered_tools(request.call.request)
        if offered and request.name not in offered and not _ran(request) and not _is(request, "unknown_tool"):
            yield _about(request, f"offered were {', '.join(map(repr, sorted(offered)))}")


def invalid_arguments(records: Records) -> Iterator[Signal]:
    """The arguments are not JSON, or not what the tool's schema asks for, or the framework refused them."""
    yield from _failed(records, "invalid_arguments")
    for request in records.requests:
        offered = get_dialect(request.call.dialect).offered_tools(request.call.request)
        if request.name in offered and not _is(request, "invalid_arguments"):
            problem = _problem_of(request.arguments, offered[request.name])
            if problem is not None:
                yield _about(request, problem)


def unfit_reply(records: Records) -> Iterator[Signal]:
    """The reply has not the form that its request asks for: a schema, one of several texts, a call of a tool.

    A reply that was held to it fits. One that was cut says nothing, nor do arguments: `cut_by_length` and
    `invalid_arguments` are about those.
    """
    for call in records.calls:
        asked = _asked_form(call) if call.status == "completed" and call.grammar is None else None
        if asked is not None:
            whole = [choice for choice in call.choices if choice.finish_reason != "length"]
            problems = [_misfit(choice.message, *asked) for choice in whole]
            yield from (Signal(call.id, problem) for problem in problems if problem is not None)


def _asked_form(call: Call) -> tuple[Constraint, bool] | None:
    """Returns the form asked of the reply, and whether calls of tools would do in its place."""
    dialect = get_dialect(call.dialect)
    try:
        asked = dialect.constraint(call.request)
    except ApiError:  # of another endpoint, which may know more forms
        return None
    return (
        None if asked is None else (asked, asked.tools is None and bool(dialect.offered_tools(call.request)))
    )


def _misfit(message: Mapping[str, Any], asked: Constraint, or_calls: bool) -> str | None:
    """Why a reply does not fit; None if it does."""
    called = [each["function"]["name"] for each in message.get("tool_calls") or ()]
    if asked.tools is not None:
        wanted = " or ".join(asked.tools)
        return None if called and set(called) <= set(asked.tools) else f"no call of {wanted}, as was asked"
    if called and or_calls:
        return None
    text = str(message.get("content") or "")
    if asked.choice is not None and text not in asked.choice:
        return f"{text[:80]!r} is none of the choices"
    if asked.schema is not None:
        return _unlike(text, asked.schema)
    return None


def _unlike(text: str, schema: Schema | bool) -> str | None:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as problem:
        return f"not JSON, as was asked: {problem}"
    return None if isinstance(schema, bool) else _violation(given, schema)


def empty_result(records: Records) -> Iterator[Signal]:
    """The tool ran well and says that it found nothing: an empty list or object, or one without rows."""
    for request in records.requests:
        if _ran(request) and request.outcome is not None and is_empty(request.outcome.result):
            yield _about(request, f"nothing for {request.arguments}")


def _failed(records: Records, kind: ToolErrorType) -> Iterator[Signal]:
    for request in records.requests:
        if _is(request, kind) and request.outcome is not None:
            yield _about(request, request.outcome.error or "")


def _is(request: ToolRequest, kind: ToolErrorType) -> bool:
    return request.outcome is not None and request.outcome.error_type == kind


def _ran(request: ToolRequest) -> bool:
    return request.outcome is not None and request.outcome.error is None


def _about(request: ToolRequest, detail: str) -> Signal:
    return Signal(request.call.id, f"{request.name}: {detail}", request.tool_call_id)


def _problem_of(arguments: str, schema: Schema | None) -> str | None:
    """Returns the fault in the arguments; None if there is none. An empty text stands for no arguments."""
    try:
        given = json.loads(arguments) if arguments.strip() else {}
    except ValueError as problem:
        return f"not JSON: {problem}"
    except RecursionError:
        return "not JSON that can be read: nested too deep"
    if not isinstance(given, dict):
        return "not a JSON object"
    return None if schema is None else _violation(given, schema)


_INVALID_SCHEMA: Final = (re.error, AttributeError, RecursionError, TypeError, ValueError, ZeroDivisionError)
"""Errors that jsonschema raises at an invalid schema, beside its own."""


def _violation(given: Any, schema: Schema) -> str | None:
    from jsonschema.exceptions import UnknownType, best_match
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
        worst = best_match(validator.iter_errors(given))
    except OverflowError:  # at a `multipleOf`
        return "a number is too large"
    except (UnknownType, Unresolvable, *_INVALID_SCHEMA):
        return None
    if worst is None:
        return None
    place = ".".join(map(str, worst.absolute_path))
    return f"{place}: {worst.message}" if place else str(worst.message)


# the same tool asked again, and a reply that was cut ------------------------------------------------
_NO_ARGUMENTS: Final = frozenset(("", "{}", "[]", "null"))


def cut_by_length(records: Records) -> Iterator[Signal]:
    """The reply was cut because it reached its greatest length."""
    for call in records.calls:
        if any(choice.finish_reason == "length" for choice in call.choices):
            yield Signal(call.id, "the reply reached its greatest length")


def repeated_call(records: Records) -> Iterator[Signal]:
    """The agent asked for the same tool with the same arguments twice running, and was told the same.

    Twice running: the agent did nothing else in between, no other request and no reply in words. A request
    without arguments says nothing, as handoffs and "what is new?" have none. Nor does one that was told
    different things in this rollout, as a poll is, or whose outcome is unknown. Of two calls at the
    same time neither repeats the other.
    """
    told: defaultdict[Hashable, set[Outcome | None]] = defaultdict(set)
    for request in records.requests:
        told[_key(request)].add(request.outcome)
    for before, request in _running(records):
        outcomes = told[_key(request)]
        same = _key(before) == _key(request) and None not in outcomes and len(outcomes) == 1
        if same and _canonical(request.arguments) not in _NO_ARGUMENTS and _after(before, request):
            detail = f"{request.name}: again {request.arguments}"
            yield Signal(request.call.id, detail, request.tool_call_id)


def _running(records: Records) -> Iterator[tuple[ToolRequest, ToolRequest]]:
    """Each request with the one before it, where the same agent did nothing in between."""
    of_call: defaultdict[str, list[ToolRequest]] = defaultdict(list)
    for request in records.requests:
        of_call[request.call.id].append(request)
    last: dict[str, ToolRequest] = {}
    for call in records.calls:
        if call.status == "completed" and call.id not in of_call:
            last.pop(call.agent, None)
        for request in of_call[call.id]:
            if (before := last.get(call.agent)) is not None:
                yield before, request
            last[call.agent] = request


def _key(request: ToolRequest) -> Hashable:
    return request.call.agent, request.name, _canonical(request.arguments)


def _canonical(arguments: str) -> str:
    """The text of equal JSON is equal, whatever the spaces and the order of keys."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()


def _after(before: ToolRequest, request: ToolRequest) -> bool:
    """Whether its call began when the other's had ended, or is the very same."""
    return before.call.id == request.call.id or request.call.started_at >= before.call.ended_at
