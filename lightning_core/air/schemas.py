"""The tools that a request offered, in any dialect, and whether arguments fit their schemas.

`jsonschema` does the checking. It is imported when arguments are first checked, and is never let fetch a
schema from elsewhere. A schema that is none itself finds nothing wrong: that is no fault of the model's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def offered_tools(request: Mapping[str, Any]) -> dict[str, Schema | None]:
    """The functions that a request offered, with the schemas of their arguments as far as it gave them."""
    tools = request.get("tools")
    return dict(found for tool in (tools if isinstance(tools, list) else ()) for found in _function(tool))


def problem_of(arguments: str, schema: Schema | None) -> str | None:
    """What is wrong with the arguments; None if nothing is. No text at all stands for no arguments."""
    try:
        given = json.loads(arguments) if arguments.strip() else {}
    except ValueError as problem:
        return f"not JSON: {problem}"
    except RecursionError:
        return "not JSON that can be read: nested too deep"
    if not isinstance(given, dict):
        return "not a JSON object"
    return None if schema is None else _violation(given, schema)


def _function(tool: Any) -> Iterator[tuple[str, Schema | None]]:
    """Name and schema: Chat nests them under "function", Anthropic calls the schema `input_schema`."""
    if not isinstance(tool, dict):
        return
    nested = tool.get("function")
    told = nested if isinstance(nested, dict) else tool
    if told.get("name"):
        schema = told.get("parameters", told.get("input_schema"))
        yield str(told["name"]), schema if isinstance(schema, dict) else None


def _violation(given: dict[str, Any], schema: Schema) -> str | None:
    from jsonschema.exceptions import UnknownType, best_match
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
    try:
        worst = best_match(validator.iter_errors(given))
    except (UnknownType, Unresolvable, re.error, AttributeError, RecursionError, TypeError, ValueError):
        return None
    if worst is None:
        return None
    place = ".".join(map(str, worst.absolute_path))
    return f"{place}: {worst.message}" if place else str(worst.message)
