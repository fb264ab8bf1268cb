"""Arguments of a call that are not one JSON object: each between tags, or as Python writes them.

A value between tags is bare text, so its type comes from the function's schema. Python's literals are read
here and not by `ast`: models leave quotes and line ends in strings as they are, and name arguments `from`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from lightning_core.texts.json_text import DEPTH, JsonError, read_written, whole

EVERY: Final = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
"""All types of JSON."""
_REFERENCES: Final = 20
"""How many references one after another are followed."""
_DEEPEST: Final = 64
"""How many schemas within one another are read."""
_CONSTANTS: Final = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_WORD: Final = re.compile(r"[\w.-]+")
_NUMBER: Final = re.compile(r"[+-]?(\d[\d_]*)?(\.\d*)?([eE][+-]?\d+)?")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_MOST: Final = sys.float_info.max
_CODES: Final = {"x": 2, "u": 4, "U": 8}
"""Escapes by a character's number, and its hexadecimal digits."""


def resolve(schema: Any, root: Any) -> Any:
    """The schema that a local reference leads to, or the schema itself; {} for one that leads nowhere."""
    for _ in range(_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        found = root
        for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        schema = found
    return {}


def kinds_of(schema: Any, root: Any, known: dict[int, frozenset[str]] | None = None) -> frozenset[str]:
    """The types of JSON that a value may have by its schema; all of them beyond `_DEEPEST` schemas.

    `known` holds those of schemas that were read before, by their identity: each is read once, also where
    they lead to one another in circles.
    """
    return _kinds(schema, root, {} if known is None else known, _DEEPEST)


def _kinds(schema: Any, root: Any, known: dict[int, frozenset[str]], deeper: int) -> frozenset[str]:
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or not deeper:
        return EVERY
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = EVERY
    kinds = EVERY
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kinds &= {str(each) for each in named}
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list):
            kinds &= {_kind(value) for value in values}
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            kinds &= frozenset[str]().union(
                *(_kinds(each, root, known, deeper - 1) for each in schema[union])
            )
    if isinstance(schema.get("allOf"), list):
        for each in schema["allOf"]:
            kinds &= _kinds(each, root, known, deeper - 1)
    known[id(schema)] = kinds | {"integer"} if "number" in kinds else kinds
    return known[id(schema)]


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
    return kinds.get(type(value), "null")


def read_value(text: str, kinds: frozenset[str]) -> Any:
    """The value of an argument that was written as bare text: what the kinds make of it, else the text.

    A value that may be text stays text unless it is of one of the other kinds as it stands.
    """
    if kinds == EVERY or kinds <= {"string"}:
        return text
    try:
        value = _read(text.strip())
    except JsonError:
        return text
    if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if _kind(value) in kinds - {"string"} or "string" not in kinds else text


def _read(text: str) -> Any:
    try:
        return read_written(text)
    except JsonError:
        reader = Literals(text)
        value = reader.value()
        reader.end()
        return value


def typed(name: str, texts: Mapping[str, str], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a function, each by its property's schema; without one they stay text."""
    root = schemas.get(name)
    properties = root.get("properties") if isinstance(root, dict) else None
    known = properties if isinstance(properties, dict) else {}
    return {key: read_value(text, kinds_of(known.get(key), root)) for key, text in texts.items()}


class Literals:
    """Reads what Python's syntax writes, from the beginning of a text; methods raise JsonError."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """[name(key=value, …), …] as (name, arguments)."""
        self._take("[")
        found = []
        while not self._takes("]"):
            found.append(self._call())
            self._separate("]")
        self.end()
        return found

    def first_calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The same of a text that was cut: the calls before the one that is not whole."""
        found = []
        with suppress(JsonError):
            self._take("[")
            while True:
                found.append(self._call())
                self._separate("]")
        return found

    def value(self) -> Any:
        """A literal: text, a number, a constant, a list, a tuple, a set, a dictionary."""
        sign = self._peek()
        if sign in "\"'":
            return self._string()
        if sign in "[(":
            return self._items({"[": "]", "(": ")"}[sign])
        if sign == "{":
            return self._mapping()
        word = self._match(_WORD)
        if word in _CONSTANTS:
            self._at += len(word)
            return _CONSTANTS[word]
        return self._number()

    def end(self) -> None:
        """Nothing but blank space is left."""
        if self._peek():
            raise self._wrong("the end")

    def _call(self) -> tuple[str, dict[str, Any]]:
        name = self._name("(")
        arguments = {}
        while not self._takes(")"):
            key = self._name("=")
            arguments[key] = self.value()
            self._separate(")")
        return name, arguments

    def _name(self, after: str) -> str:
        self._peek()
        name = self._match(_WORD)
        self._at += len(name)
        if not name:
            raise self._wrong("a name")
        self._take(after)
        return name

    def _items(self, closing: str) -> list[Any]:
        self._open()
        values = []
        while not self._takes(closing):
            values.append(self.value())
            self._separate(closing)
        self._depth -= 1
        return values

    def _mapping(self) -> Any:
        self._open()
        found: dict[str, Any] = {}
        members = []
        while not self._takes("}"):
            key = self.value()
            if self._takes(":"):
                found[key if isinstance(key, str) else str(key)] = self.value()
            else:
                members.append(key)
            self._separate("}")
        self._depth -= 1
        if found and members:
            raise self._wrong("a dictionary")
        return members or found

    def _open(self) -> None:
        self._at += 1
        self._depth += 1
        if self._depth > DEPTH:
            raise JsonError(f"it is nested more than {DEPTH} levels deep")

    def _string(self) -> str:
        quote = self._text[self._at]
        if self._text.startswith(3 * quote, self._at):
            begin, end = self._at + 3, self._text.find(3 * quote, self._at + 3)
            if end < 0:
                raise self._wrong(3 * quote)
            self._at = end + 3
            return _unescaped(self._text[begin:end])
        begin = end = self._at + 1
        while end < len(self._text) and not (self._text[end] == quote and self._closes(end)):
            end += 1 + (self._text[end] == "\\")
        if end >= len(self._text):
            raise self._wrong(quote)
        self._at = end + 1
        return _unescaped(self._text[begin:end])

    def _closes(self, at: int) -> bool:
        """Whether a quote ends a text: what stands behind it can stand behind a value."""
        at += 1
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        return at == len(self._text) or self._text[at] in ",)]}:"

    def _number(self) -> Any:
        text = self._match(_NUMBER)
        if not any(map(str.isdigit, text)):
            raise self._wrong("a value")
        self._at += len(text)
        plain = text.replace("_", "")
        try:
            return max(-_MOST, min(_MOST, float(plain))) if set(plain) & set(".eE") else int(plain)
        except ValueError as error:
            raise JsonError(str(error)) from error

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        return found[0] if found else ""

    def _peek(self) -> str:
        """The next sign that is no blank space; "" at the end."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _takes(self, sign: str) -> bool:
        found = self._peek() == sign
        self._at += found
        return found

    def _take(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._wrong(sign)

    def _separate(self, closing: str) -> None:
        if not self._takes(",") and self._peek() != closing:
            raise self._wrong(f"',' or {closing!r}")

    def _wrong(self, wanted: str) -> JsonError:
        return JsonError(f"{wanted} is missing at character {self._at}")


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return whole(text)
    found, at = [], 0
    while at < len(text):
        sign = text[at + 1 : at + 2]
        digits = text[at + 2 : at + 2 + _CODES.get(sign, 0)]
        if text[at] != "\\" or not sign:
            found.append(text[at])
            at += 1
        elif digits and len(digits) == _CODES[sign] and _is_code(digits):
            found.append(chr(int(digits, 16)))
            at += 2 + len(digits)
        else:
            found.append(_ESCAPES.get(sign, sign if sign in "\\'\"/" else "\\" + sign))
            at += 2
    return whole("".join(found).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _is_code(digits: str) -> bool:
    return all(each in "0123456789abcdefABCDEF" for each in digits) and int(digits, 16) < 0x110000
