"""The grammar of forced calls: as the model's template writes them, with arguments that match their schemas.

Arguments that are one JSON object are held to the schema as a whole. Where they stand one by one, each is
held to its property's schema, in the order in which the schema names them; a value that is bare text ends
with its closing tag. A schema that such a form can't show is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lightning_core.backends.serving.arguments import kinds_of, resolve
from lightning_core.backends.serving.forms import DIGITS, Form, Tags
from lightning_core.errors import UnsupportedError

_COMBINED: Final = ("allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "patternProperties")
"""Keywords by which an object's properties depend on one another."""
_PLAIN: Final = frozenset(
    (
        *("type", "enum", "const", "$ref", "anyOf", "oneOf", "$defs", "definitions", "nullable"),
        *("title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"),
    )
)
"""Keywords that say nothing of what a text consists of."""
_DATE: Final = "[0-9]{4}-[0-1][0-9]-[0-3][0-9]"
_TIME: Final = "[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[+-][0-2][0-9]:[0-5][0-9])"
_HEX: Final = "[0-9a-fA-F]"
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
}
"""Formats of a text that is not JSON."""
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_SHAPES: Final[dict[str, tuple[type, str]]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum", "required"), (list, "a list")),
    **dict.fromkeys(_NAMED, (dict, "an object")),
    **dict.fromkeys(("$ref", "format", "pattern"), (str, "a text")),
}
"""Types of the keywords that are read here or before the library reads them."""
_PYTHON: Final = {"boolean": ('"True"', '"False"'), "null": ('"None"',)}


@dataclass(slots=True)
class Calls:
    """Writes the rules of calls in one form."""

    form: Form
    tag: Callable[[str], str]
    """A piece of the form, as a token where the model has it so."""
    schema: Callable[[Any], str]
    """Writes the grammar of a value that is held to a JSON Schema."""
    check: Callable[[str, str], None]
    """Raises UnsupportedError for a text that the model can't spell, and says where it is from."""
    _rules: list[str] = field(default_factory=list)

    def write(self, tools: Sequence[dict[str, Any]], *, parallel: bool) -> str:
        """At least one call of these functions, in Lark's notation."""
        form, names = self.form, [f"call{index}" for index in range(len(tools))]
        many = f"call ({_literal(form.between)} call)*" if form.between else "call+"
        calls = many if parallel and not form.single else "call"
        self._rules = [
            f"start: {self._pieces(form.first)} {calls} {self._pieces(form.last)}",
            f"call: {self._pieces(form.before)} ({' | '.join(names)}) {self._pieces(form.after)}",
        ]
        for name, tool in zip(names, tools, strict=True):
            self._function(name, tool["function"])
        return "\n".join(self._rules)

    def _function(self, rule: str, function: dict[str, Any]) -> None:
        before, after = self.form.written(function["name"])
        what = f"call of {function['name']!r}"
        schema = _object(function.get("parameters"))
        check_shape(schema)
        head = f"{rule}: {self._pieces(before)} {rule}_arguments {_literal(after) if after else ''}"
        self._rules.append(head)
        self.check(function["name"], what)
        if self.form.tags is None:
            arguments = self.schema(schema)
            self.check(arguments, what)
            self._rules.append(f"{rule}_arguments: {arguments}")
            return
        self._rules += _Single(self, rule, what, schema, self.form.tags).rules()

    def _pieces(self, pieces: Sequence[str]) -> str:
        return " ".join("/[0-9]+/" if piece == DIGITS else self.tag(piece) for piece in pieces)


@dataclass(frozen=True, slots=True)
class _Single:
    """The rules of arguments that stand one by one."""

    calls: Calls
    rule: str
    what: str
    schema: dict[str, Any] | bool
    tags: Tags

    def rules(self) -> Iterator[str]:
        properties, required = self._properties()
        python = self.calls.form.arguments == "python"
        for index, (name, schema) in enumerate(properties.items()):
            self.calls.check(name, self.what)
            value = f"{self.rule}_value{index}"
            key = f"{self._text(self.tags.before + name + self.tags.between)} {value}"
            yield f"{self.rule}_{index}: {key}"
            yield from self._python(value, schema) if python else self._tagged(value, schema)
        names = [(f"{self.rule}_{index}", name in required) for index, name in enumerate(properties)]
        yield from self._row(names) if python else [self._together(names)]

    def _text(self, text: str) -> str:
        """Text, with the form's tags in it as they are tokens or not."""
        return " ".join(map(self.calls.tag, _parts(text)))

    def _properties(self) -> tuple[dict[str, Any], set[str]]:
        schema = resolve(self.schema, self.schema)
        if not isinstance(schema, dict):
            return {}, set()
        combined = next((word for word in _COMBINED if word in schema), None)
        properties = schema.get("properties") or {}
        missing = [name for name in schema.get("required") or () if name not in properties]
        if combined or missing:
            reason = f"{combined!r} in its parameters" if combined else f"no property {missing[0]!r}"
            raise self._refused(reason)
        return properties, set(schema.get("required") or ())

    def _refused(self, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"no reply can be held to a {self.what} in the form {self.calls.form.name!r}, whose arguments "
            f"stand one by one: {reason}; ask without a constraint, or change that"
        )

    def _together(self, names: list[tuple[str, bool]]) -> str:
        """Arguments one after another."""
        found = " ".join(name if needed else f"{name}?" for name, needed in names)
        return f"{self.rule}_arguments: {found or _literal('')}"

    def _row(self, names: list[tuple[str, bool]]) -> Iterator[str]:
        """Arguments with commas between them: rules for what may follow, with one before and with none."""
        comma, rest = _literal(self.tags.after), f"{self.rule}_rest{len(names)}"
        yield f'{rest}: ""'
        yield f'{self.rule}_none{len(names)}: ""'
        for index in reversed(range(len(names))):
            name, needed = names[index]
            after, none = f"{self.rule}_rest{index + 1}", f"{self.rule}_none{index + 1}"
            yield f"{self.rule}_rest{index}: {comma} {name} {after}" + ("" if needed else f" | {after}")
            yield f"{self.rule}_none{index}: {name} {after}" + ("" if needed else f" | {none}")
        yield f"{self.rule}_arguments: {self.rule}_none0"

    def _json(self, schema: Any) -> str:
        root = self.schema if isinstance(self.schema, dict) else {}
        kept = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return self.calls.schema({**schema, **kept} if isinstance(schema, dict) else schema)

    def _python(self, rule: str, schema: Any) -> Iterator[str]:
        """A value in Python's words, which are JSON's but for these."""
        kinds = kinds_of(schema, self.schema)
        words = [word for kind in sorted(kinds) for word in _PYTHON.get(kind, ())]
        plain = kinds <= _PYTHON.keys() and _values(resolve(schema, self.schema)) is None
        yield f"{rule}: {' | '.join(words) if plain else self._json(schema)}"

    def _tagged(self, rule: str, schema: Any) -> Iterator[str]:
        """A value and its closing tag."""
        end = _parts(self.tags.after)
        values = self._alternatives(schema)
        if values is not None:
            yield f"{rule}: ({' | '.join(values)}) {self._text(self.tags.after)}"
            return
        text = f"/{self._pattern(resolve(schema, self.schema))}/"
        if self.calls.tag(end[0]) == _literal(end[0]):
            yield f"{rule}[suffix={_literal(self.tags.after)}]: {text}"
        else:  # a token of its own ends the text
            yield f"{rule}: {rule}_text {self._text(self.tags.after)}"
            yield f"{rule}_text: {text}"

    def _alternatives(self, schema: Any) -> list[str] | None:
        """Returns the texts a value may be; None where no list names them."""
        waiting, found = [schema], list[str]()
        seen: set[int] = set()
        known: dict[int, frozenset[str]] = {}
        while waiting:
            part = resolve(waiting.pop(), self.schema)
            if id(part) in seen:
                continue
            seen.add(id(part))
            told = part if isinstance(part, dict) else {}
            union = next((told[name] for name in ("anyOf", "oneOf") if name in told), None)
            if "string" not in kinds_of(part, self.schema, known):
                found.append(self._json(part))
            elif (values := _values(part)) is not None:
                texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
                for text in texts:
                    self.calls.check(text, self.what)
                found += map(_literal, texts)
            elif union is not None:
                waiting += reversed(union)
            else:
                return None
        return found

    def _pattern(self, schema: Any) -> str:
        """A regular expression for a text by its keywords."""
        keywords = set(schema) - _PLAIN if isinstance(schema, dict) else set()
        if keywords == {"format"} and schema["format"] in _FORMATS:
            return _FORMATS[schema["format"]]
        if keywords - {"minLength", "maxLength"}:
            raise self._refused(f"{min(keywords - {'minLength', 'maxLength'})!r} of a text")
        if keywords:
            return f"(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})"
        return "(?s:.*)"


def check_shape(schema: Any) -> None:
    """Raise UnsupportedError for a schema in which a keyword has a value of another type than it may have."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        value: Any
        for name, value in part.items():
            kind, words = _SHAPES.get(name, (object, ""))
            if type(value) is not kind and kind is not object:
                raise UnsupportedError(
                    f"no reply can be held to a schema in which {name!r} is not {words}; correct it"
                )
            if name == "required" and not all(isinstance(each, str) for each in value):
                raise UnsupportedError("no reply can be held to a schema that requires what is no name")
            if name in ("enum", "const", "default", "examples"):
                continue
            waiting += value if isinstance(value, list) else value.values() if name in _NAMED else [value]


def _values(schema: Any) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if not isinstance(schema, dict):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _object(schema: Any) -> dict[str, Any] | bool:
    """The schema of a function's arguments, which are an object in any case."""
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **schema} if isinstance(schema, dict) else bool(schema)


def _parts(text: str) -> list[str]:
    """A text cut around its tags, each of which may be one token."""
    return [part for part in re.split("(<[^<>]*>)", text) if part]


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
