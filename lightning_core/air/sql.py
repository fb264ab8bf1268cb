"""The rule about SQL that the database refuses, whoever runs it: a graph's node, a tool, another process.

What the database said comes from OpenTelemetry's database spans (`db.query.text` or `db.statement`, with the
status ERROR), which any instrumented driver gives. A span doesn't say which call wrote its statement. The
statement itself does: it is the call whose reply holds exactly that text, as the reply, in a fence, in JSON
or in the arguments of a tool. Only white space, fences and closing semicolons may differ.

A fenced statement amid other words that the call's own prompt held already is a quotation, and says nothing.
A statement that also ran well in the rollout was not at fault, nor was one that met a locked table or a lost
connection (`refusals.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from lightning_core import transcript
from lightning_core.air.base import Records, Signal
from lightning_core.air.refusals import at_fault, split_error
from lightning_core.types import Call, Event, Span

STATEMENT: Final = ("db.query.text", "db.statement")
"""The attribute of a statement, in today's conventions and in those before."""
_FENCE: Final = re.compile(r"```[^\S\n]*\w*\s(.*?)```", re.DOTALL)


def sql_error(records: Records) -> Iterator[Signal]:
    """A statement of the reply does not run."""
    refused = _refused(records.events)
    if not refused:
        return
    for call in records.calls:
        if call.status == "completed":
            for statement in dict.fromkeys(_in_replies(call)):
                if statement in refused:
                    yield Signal(call.id, f"{refused[statement]}: {statement}")
    for request in records.requests:
        for statement in dict.fromkeys(_leaves_of(request.arguments)):
            if statement in refused:
                detail = f"{refused[statement]}: {statement}"
                yield Signal(request.call.id, detail, request.tool_call_id)


def normalise(statement: str) -> str:
    """The statement with single spaces and without closing semicolons."""
    return " ".join(statement.split()).rstrip("; ")


def _refused(events: Iterable[Event]) -> dict[str, str]:
    """The statements that were at fault and never ran well, with what the database said."""
    refused: dict[str, str] = {}
    ran: set[str] = set()
    for span in (event for event in events if isinstance(event, Span)):
        text = next((span.attributes[name] for name in STATEMENT if name in span.attributes), None)
        if not isinstance(text, str):
            continue
        if span.error is None:
            ran.add(normalise(text))
        elif at_fault(span):
            refused.setdefault(normalise(text), split_error(span.error)[1] or "refused")
    return {statement: said for statement, said in refused.items() if statement and statement not in ran}


def _in_replies(call: Call) -> Iterator[str]:
    """The texts of the replies that may be statements."""
    for choice in call.choices:
        content = choice.message.get("content")
        if isinstance(content, str):
            text = content.rpartition("</think>")[2]
            fenced = [normalise(inner) for inner in _FENCE.findall(text)]
            if fenced and _FENCE.sub("", text).strip():
                prompt = normalise(transcript.text(transcript.prompt(call)))
                yield from (statement for statement in fenced if statement not in prompt)
            else:
                yield from fenced or [normalise(text), *_leaves_of(text)]


def _leaves_of(text: str) -> Iterator[str]:
    """The strings in a JSON text."""
    if not text.lstrip().startswith(("{", "[")):
        return
    try:
        yield from map(normalise, _strings(json.loads(text)))
    except (ValueError, RecursionError):
        return


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
