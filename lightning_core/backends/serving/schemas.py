"""A JSON schema as a grammar for llguidance, without what no reply depends on."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from lightning_core.backends.serving.forced import check_shape
from lightning_core.errors import UnsupportedError

_ANNOTATIONS: Final = frozenset(
    ("$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly")
)
_ANY_NAME: Final[tuple[Any, ...]] = (True, {}, {"type": "string"})
"""Rules for the names of properties that rule out none; zod writes the last with each record."""
_BY_NAME: Final = (
    *("$defs", "definitions", "dependencies", "dependentRequired", "dependentSchemas"),
    *("patternProperties", "properties"),
)
"""Keywords whose values are by names of the app's own."""
_JOINING: Final = frozenset(
    (
        *("$dynamicRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "not", "oneOf"),
        *("patternProperties", "unevaluatedProperties"),
    )
)
"""Keywords by which a schema speaks of an object that it, or another part, speaks of too."""
_FORMATS: Final = frozenset(
    (
        *("date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6"),
        *("iri", "iri-reference", "json-pointer", "relative-json-pointer", "time", "uri"),
        *("uri-reference", "uri-template", "uuid"),
    )
)
"""The formats that JSON Schema defines and the library holds a reply to."""
_SOME_DIGIT: Final = "^(?!^[-+.]*$)"
"""How pydantic says of a Decimal that a sign and a point alone are no number."""
_PLAIN: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_grammar(schema: dict[str, Any] | bool) -> str:
    """The grammar of JSON by a schema. Raises UnsupportedError if no reply can be held to it."""
    if schema is False:
        raise UnsupportedError("no reply can match the schema `false`; give another")
    check_shape(schema)
    plain = {} if schema is True else _bare(schema, closed=not _combines(schema))
    _check_references(plain)
    return f"%json {json.dumps({**plain, 'x-guidance': _PLAIN}, ensure_ascii=False)}"


def _combines(schema: Any) -> bool:
    """Whether parts of it add to one another's properties, so that none can be closed by itself."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    joined = schema.keys() & _JOINING
    if len(schema.get("allOf", ())) > 1 or (joined and ("properties" in schema or joined & {"if", "not"})):
        return True
    return any(
        _combines(list(value.values()) if name in _BY_NAME and isinstance(value, dict) else value)
        for name, value in schema.items()
        if name not in ("const", "enum")
    )


def _bare(schema: Any, *, closed: bool) -> Any:
    """The schema without what no reply depends on: annotations, and formats that the library does not know,
    such as pydantic's "path" and "password". Pydantic's look-ahead in numbers written as text is put in words
    that the library knows. With `closed`, an object holds the properties that are named and no others, if
    the schema does not say: small models go on inventing them until their tokens are spent."""
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ANNOTATIONS or (name == "propertyNames" and value in _ANY_NAME):
            continue
        if name == "format" and isinstance(value, str):
            known = "uuid" if re.fullmatch("uuid[1-8]", value) else value  # pydantic's uuid4 is one
            bare |= {name: known} if known in _FORMATS else {}
        elif name in _BY_NAME and isinstance(value, dict):
            bare[name] = {key: _bare(each, closed=closed) for key, each in value.items()}
        elif name in ("const", "enum"):
            bare[name] = value
        elif isinstance(value, list):
            bare[name] = [_bare(each, closed=closed) for each in value]
        else:
            bare[name] = _bare(value, closed=closed)
    if closed and "properties" in bare:
        bare.setdefault("additionalProperties", False)
    pattern = bare.get("pattern")
    if isinstance(pattern, str) and pattern.startswith(_SOME_DIGIT) and "allOf" not in bare:
        bare |= {"pattern": "^" + pattern.removeprefix(_SOME_DIGIT), "allOf": [{"pattern": "\\d"}]}
    return bare


def _check_references(schema: Any) -> None:
    """Raise UnsupportedError for the one combination of keywords that the library reads by a newer draft."""
    open_parts = [schema]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str) and "$id" in part:
                raise UnsupportedError("no reply can be held to a schema with $id beside $ref; take it out")
            open_parts += part.values()
        elif isinstance(part, list):
            open_parts += part
