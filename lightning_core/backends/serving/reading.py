"""Readers of tool calls as (id, name, arguments): one function for each way of writing.

Each takes a text and the schemas of the request's functions. It raises JsonError for a text that is not calls
and nothing else. The id is the model's own where it writes one, else None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lightning_core.backends.serving.arguments import Literals, typed
from lightning_core.texts.json_text import JsonError, read_written

Schemas = Mapping[str, Any]
"""The schema of each function's arguments, by its name."""
Found = tuple[str | None, Any, Any]
Reading = Callable[[str, Schemas], list[Found]]


def read_object(text: str, _: Schemas) -> list[Found]:
    """{"name": …, "arguments": {…}}; no arguments are {}."""
    value = read_written(text)
    if not isinstance(value, dict):
        raise JsonError("it is no object")
    return [(None, value.get("name"), value.get("arguments", {}))]


def read_objects(text: str, _: Schemas) -> list[Found]:
    """Objects with ";" between them."""
    text = text.strip()
    found, at, read = [], 0, json.JSONDecoder(strict=False).raw_decode
    while at < len(text):
        try:
            _value, end = read(text, at)
        except (ValueError, RecursionError) as error:
            raise JsonError(str(error)) from error
        found.append(_pair(read_written(text[at:end])))
        at = end + len(text[end:]) - len(text[end:].lstrip("; \n"))
    return found


def read_list(text: str, _: Schemas) -> list[Found]:
    """[{"name": …, "arguments": {…}}, …]."""
    values = read_written(text)
    return [_pair(value) for value in (values if isinstance(values, list) else [values])]


def read_granite(text: str, schemas: Schemas) -> list[Found]:
    """The same, with the tag before it that Granite 3.1 writes as text."""
    return read_list(text.strip().removeprefix("<tool_call>"), schemas)


def _pair(value: Any) -> Found:
    if not isinstance(value, dict):
        raise JsonError("it is no object")
    return None, value.get("name"), value.get("arguments", value.get("parameters"))


def read_mistral(text: str, schemas: Schemas) -> list[Found]:
    """name[ARGS]{…}, a call after each tag; or a list of objects."""
    if "[ARGS]" not in text:
        return read_list(text, schemas)
    parts = [part.partition("[ARGS]") for part in text.split("[TOOL_CALLS]")]
    # between name and arguments stands the call's id in one generation of these models
    heads = [head.partition("[CALL_ID]") for head, _, _ in parts]
    arguments = [read_written(each) for _, _, each in parts]
    return [
        (call_id.strip() or None, name.strip(), each)
        for (name, _, call_id), each in zip(heads, arguments, strict=True)
    ]


def read_kimi(text: str, _: Schemas) -> list[Found]:
    """functions.name:0<|tool_call_argument_begin|>{…}; what stands before the arguments is the call's id."""
    head, tag, arguments = text.partition("<|tool_call_argument_begin|>")
    name, _colon, number = head.strip().rpartition(":")
    if not tag or not number.isdigit():
        raise JsonError("no id and arguments")
    return [(head.strip(), name.removeprefix("functions."), read_written(arguments.strip() or "{}"))]


def read_deepseek(text: str, _: Schemas) -> list[Found]:
    """name<｜tool▁sep｜>{…}; or function<｜tool▁sep｜>name, then the arguments in a block of Markdown."""
    head, tag, rest = text.partition("<｜tool▁sep｜>")
    name, fence, arguments = rest.partition("```json")
    if not tag:
        raise JsonError("no name and arguments")
    if not fence:
        return [(None, head.strip(), read_written(rest.strip() or "{}"))]
    return [(None, name.strip(), read_written(arguments.rpartition("```")[0]))]


def read_python(text: str, schemas: Schemas) -> list[Found]:
    """[name(key=value), …], or the same calls as a list of objects."""
    text = text.strip().removeprefix("<|python_start|>")
    if text.removeprefix("[").lstrip().startswith("{"):
        return read_list(text, schemas)
    return [(None, name, arguments) for name, arguments in Literals(text).calls()]


def read_functions(text: str, schemas: Schemas) -> list[Found]:
    """<function=name><parameter=key>value</parameter></function>, once or more."""
    found: list[Found] = []
    for part in text.split("<function=")[1:]:
        name, sign, body = part.partition(">")
        texts = {}
        for each in body.partition("</function>")[0].split("<parameter=")[1:]:
            key, named, value = each.partition(">")
            sign = named and sign
            texts[key] = value.partition("</parameter>")[0].removeprefix("\n").removesuffix("\n")
        if not sign:
            raise JsonError("a tag without its end")
        found.append((None, name.strip(), typed(name.strip(), texts, schemas)))
    return found


def read_keys(text: str, schemas: Schemas) -> list[Found]:
    """name, then <arg_key>key</arg_key><arg_value>value</arg_value> for each argument."""
    name, *pairs = text.split("<arg_key>")
    texts = {}
    for pair in pairs:
        key, end, rest = pair.partition("</arg_key>")
        _, begin, value = rest.partition("<arg_value>")
        value, closed, _ = value.partition("</arg_value>")
        if not (end and begin and closed):
            raise JsonError("an argument without its tags")
        texts[key.strip()] = value
    return [(None, name.strip(), typed(name.strip(), texts, schemas))]


def read_first(text: str) -> list[Found]:
    """The calls at the beginning of a text that was cut, in a form without a closing tag, as far as whole."""
    if "[ARGS]" in text:
        found: list[Found] = []
        with suppress(JsonError):
            for part in text.split("[TOOL_CALLS]"):
                found += read_mistral(part, {})
        return found
    if "{" not in text.partition("(")[0]:
        return [(None, name, arguments) for name, arguments in Literals(text).first_calls()]
    found, at, read = [], 0, json.JSONDecoder(strict=False).raw_decode
    with suppress(ValueError, RecursionError):
        while (start := text.find("{", at)) >= 0:
            _, at = read(text, start)
            found.append(_pair(read_written(text[start:at])))
    return found
