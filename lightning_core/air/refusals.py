"""Whether a database refused a statement for what the statement says, and not for the state that it was in.

A locked table, a lost connection or an interrupted query is no fault of whoever wrote the statement. What
tells them apart, the first that is known:

1. the SQLSTATE (`db.response.status_code`, or in the text): class 42 is the statement's syntax and names, 22
   its values, 21 the number of rows that it compares;
2. for SQLite, whose drivers have one exception for all of it: an `OperationalError` whose message is none of
   SQLite's own for a state (https://www.sqlite.org/rescode.html) or for a transaction;
3. the exception's type: DB-API's `ProgrammingError` and `DataError`, or the name that psycopg and asyncpg
   give to a SQLSTATE of those classes;
4. the message, as PostgreSQL, MySQL and SQLite put the commonest.

What none of them knows is not held against anybody. A constraint that rows break (class 23) is not the
statement's fault either: the same statement may be right on other rows.
"""

from __future__ import annotations

import re
from typing import Final

from lightning_core.types import Span

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


def at_fault(span: Span) -> bool:
    """Whether the statement of a span that failed is at fault."""
    said = span.error or ""
    if (state := _sqlstate(span, said)) is not None:
        return state.startswith(_CLASSES)
    kind, message = split_error(said)
    if _system(span, said).startswith("sqlite"):
        return _sqlite_at_fault(kind, message)
    if kind and _TYPES.fullmatch(kind):
        return "closed" not in message
    return _MESSAGES.search(message) is not None


def split_error(said: str) -> tuple[str, str]:
    """The exception's type, "" if it is not told, and its message."""
    found = _TYPE.match(said)
    name = found[1].rpartition(".")[2] if found else ""
    if found is None or not name[:1].isupper():
        return "", said.strip()
    inner = split_error(said[found.end() :]) if said[found.end() :].startswith("(") else ("", "")
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
