"""The rule about SQL that the database refuses, whoever runs it: a graph's node, a tool, another process.

What the database said comes from OpenTelemetry's database spans (`db.query.text` or `db.statement`, with the
status ERROR), which any instrumented driver gives. A span doesn't say which call wrote its statement. The
statement itself does: it is the call whose reply holds exactly that text, as the reply, in a fence, in JSON
or in the arguments of a tool. Only white space, fences and closing semicolons may differ.

A fenced statement amid other words that the call's own prompt held already is a quotation, and says nothing.
A statement that also ran well in the rollout was not at fault, nor was one that met a locked table or a lost
connection.

A locked table, a lost connection or an interrupted query is no fault of whoever wrote the statement. What
tells them apart, the first that is known:

1. the SQLSTATE (`db.response.status_code`, or in the text): class 42 is the statement's syntax and names, 22
   its values, 21 the number of rows that it compares;
2. for SQLite, whose drivers have one exception for all of it: an `OperationalError` whose message is none of
   SQLite's own for a state (https://www.sqlite.org/rescode.html) or for a transaction;
3. the exception's type: DB-API's `ProgrammingError` and `DataError`, or the name that psycopg and asyncpg
   give to a SQLSTATE of those classes;
4. the message, as PostgreSQL, MySQL and SQLite put the commonest.

What none of them knows counts as no fault. A constraint that rows break (class 23) is not the
statement's fault either: the same statement may be right on other rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from lightning_core.air.base import Records, Signal
from lightning_core.dialects import transcript
from lightning_core.records.types import Call, Event, Span

STATEMENT: Final = ("db.query.text", "db.statement")
"""The attribute of a statement, in today's conventions and in those before."""
_FENCE: Final = re.compile(r"```[^\S\n]*+(?:\w++\s|\s|(?<=\s))(.*?)```", re.DOTALL)

_CODE: Final = "db.response.status_code"
_SYSTEMS: Final = ("db.system.name", "db.system")
_TYPE: Final = re.compile(r"\(?([A-Za-z_][\w.]*)(?:\)|:)(?:\s+|$)")
"""The exception's type, with which a span's description begins; SQLAlchemy puts it in brackets."""
_STATE: Final = re.compile(r"[0-9A-Z]{5}")
_TOLD_STATE: Final = re.compile(r"\bSQLSTATE\W{0,2}([0-9A-Z]{5})\b")
_CLASSES: Final = ("21", "22", "42")

_SQLITE_STATE: Final = re.compile(
    r"access permission denied|query aborted|abort due to|interrupted|locking protocol|out of memory"
    r"|database (?:table |schema )?is locked|attempt to write a readonly database|disk I/O error"
    r"|database disk image is malformed|database or disk is full|unable to open database|unknown operation"
    r"|database schema has changed|large file support is disabled|file is not a database|not an error"
    r"|authoriz(?:ation|er)|not authorized|user-defined (?:function|aggregate)|could not decode"
    r"|no such (?:savepoint|vfs)|cannot (?:start|commit|rollback|release|open savepoint|vacuum|detach|change)"
    r"|unknown error|SQL logic error",
    re.IGNORECASE,
)
_ONE_STATEMENT: Final = "You can only execute one statement at a time"
"""Python's sqlite3 has a `ProgrammingError` for it, or in old versions a `Warning`."""

_TYPES: Final = re.compile(
    r"ProgrammingError|DataError|(?:Postgres)?SyntaxError|Undefined\w+|Ambiguous\w+|Indeterminate\w+"
    r"|Duplicate(?:Alias|Column|Cursor|Function|Object|Schema|Table)\w*|(?:Grouping|Windowing)Error"
    r"|(?:DatatypeMismatch|CannotCoerce|WrongObjectType|InvalidRecursion|InvalidColumnReference)\w*"
    r"|(?:ReservedName|NameTooLong|CardinalityViolation|DivisionByZero|NumericValueOutOfRange)\w*"
    r"|Invalid(?:TextRepresentation|DatetimeFormat|RegularExpression|Argument|ParameterValue|RowCount)\w*"
    r"|(?:DatetimeFieldOverflow|ArraySubscript|StringDataRightTruncation|StringDataLengthMismatch)\w*"
)
_MESSAGES: Final = re.compile(
    r"syntax error|error in your SQL syntax|incomplete input|unrecognized token|unterminated quoted"
    r"|no such (?:table|column|function)|(?:unknown|ambiguous) column"
    r"|(?:column|reference) .{1,200} is ambiguous"
    r"|(?:aggregate|function|operator|relation|type|column|table|view) .{1,300} (?:does not|doesn't) exist"
    r"|misuse of (?:aggregate|window)|must appear in the GROUP BY|wrong number of arguments to function"
    r"|invalid (?:input syntax|use of group function)|division by zero|missing FROM-clause",
    re.IGNORECASE | re.DOTALL,
)


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
        elif _at_fault(span):
            refused.setdefault(normalise(text), _split_error(span.error)[1] or "refused")
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


def _at_fault(span: Span) -> bool:
    """Whether the statement of a span that failed is at fault."""
    said = span.error or ""
    if (state := _sqlstate(span, said)) is not None:
        return state.startswith(_CLASSES)
    kind, message = _split_error(said)
    if _system(span, said).startswith("sqlite"):
        return _sqlite_at_fault(kind, message)
    if kind and _TYPES.fullmatch(kind):
        return "closed" not in message
    return _MESSAGES.search(message) is not None


def _split_error(said: str) -> tuple[str, str]:
    """The exception's type, "" if it is not told, and its message."""
    found = _TYPE.match(said)
    name = found[1].rpartition(".")[2] if found else ""
    if found is None or not name[:1].isupper():
        return "", said.strip()
    inner = _split_error(said[found.end() :]) if said[found.end() :].startswith("(") else ("", "")
    return inner if inner[0] else (name, said[found.end() :].strip())


def _sqlite_at_fault(kind: str, message: str) -> bool:
    if message.startswith(_ONE_STATEMENT):
        return True
    return kind in ("", "OperationalError") and bool(message) and _SQLITE_STATE.match(message) is None


def _sqlstate(span: Span, said: str) -> str | None:
    code = span.attributes.get(_CODE)
    if isinstance(code, str) and _STATE.fullmatch(code):
        return code
    told = _TOLD_STATE.search(said)
    return told[1] if told else None


def _system(span: Span, said: str) -> str:
    told = next((span.attributes[name] for name in _SYSTEMS if name in span.attributes), None)
    return str(told) if told is not None else "sqlite" if said.lstrip("(").startswith("sqlite3.") else ""
