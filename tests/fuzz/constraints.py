"""Requests whose reply is held to a form: deep, broad, large, ambiguous, recursive, or no form at all.

Sizes are drawn so that each order of magnitude is as likely as the next, up to a little beyond what a request
may have. Most are harmless, some are refused, and some would take a compiler's stack, time or memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.backends import bombs
from tests.fuzz.grammar import Case, Key, Manner, Suite, Target
from tests.fuzz.junk import mutate, number, text, value, write

TARGETS: Final[dict[Target, int]] = {"chat": 4, "responses": 2, "anthropic": 2, "completions": 3}
"""How often each API is asked."""
_PATHS: Final = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "completions": "/v1/completions",
}
_MANNERS: Final[dict[Manner, int]] = {"whole": 60, "leave": 6, "abort": 3}
_KEYS: Final[dict[Key, int]] = {"live": 60, "ended": 1}
_ATOMS: Final = (
    *(
        "a",
        "b",
        "xy",
        ".",
        "\\w",
        "\\d",
        "\\s",
        "\\b",
        "\\S",
        "[^a]",
        "[a-z]",
        "[^\\x00-\\x7f]",
        "^",
        "$",
        "é",
    ),
    *("\\p{L}", "\\P{Lu}", "[\\u0100-\\uffff]", "😀", "\\1", "(?=a)", "(?!b)", "(?<=a)", "\\Z", "[", "\\"),
)
_FORMATS: Final = ("date-time", "uuid", "email", "uri", "ipv6", "hostname", "regex", "odd")
_TERMS: Final = (
    *(
        '"a"',
        '"b"i',
        "/[a-z]+/",
        "/a*a*a*b/",
        '"a".."z"',
        "/(?s:.*)/",
        '""',
        "<|im_end|>",
        "<[5]>",
        "<[0-9]>",
    ),
    *(
        '%json {"type": "string"}',
        '%regex {"pattern": "a+"}',
        "WORD",
        "nowhere",
        "/\\w{1,200}/",
        "%lark { start: ",
    ),
)


def make_constraint_case(seed: int, number: int) -> Case:
    """The case of that number."""
    draw = Random(f"constraints/{seed}/{number}")
    target: Target = draw.choices(list(TARGETS), list(TARGETS.values()))[0]
    key: Key = draw.choices(list(_KEYS), list(_KEYS.values()))[0]
    manner: Manner = draw.choices(list(_MANNERS), list(_MANNERS.values()))[0]
    make = _bomb if draw.random() < 0.01 else draw.choice(_KINDS)
    body = _BODIES[target](draw, _changed(draw, make(draw)))
    headers = (
        ("content-type", b"application/json"),
        ("x-lightning-agent", draw.choice((b"writer", b"critic"))),
    )
    return Case(number, target, "POST", _PATHS[target], headers, write(body), key, manner)


def _size(draw: Random, most: int) -> int:
    """From 1 to `most`, each order of magnitude as likely as the next."""
    return int(most ** draw.random())


Asked = tuple[str, Any]
"""The kind of a constraint, in vLLM's words, and what it holds a reply to."""


def _depth(draw: Random) -> Asked:
    """References, rules, brackets or parentheses within one another."""
    match draw.randrange(6):
        case 0:
            return "json", bombs.references(_size(draw, 2_000))
        case 1:
            return "grammar", bombs.rules(_size(draw, 6_000))
        case 2:
            schema: Any = {"type": "string"}
            for _ in range(_size(draw, 90)):
                schema = draw.choice(
                    (
                        {"type": "array", "items": schema, "maxItems": draw.choice((1, 3, 10**6))},
                        {"type": "object", "properties": {"a": schema}, "required": ["a"]},
                        {"anyOf": [schema, {"type": "null"}]},
                    )
                )
            return "json", schema
        case 3:
            depth = _size(draw, 20_000)
            return "regex", "(" * depth + "a" + draw.choice((")", ")*", ")?", "){2}")) * depth
        case 4:
            depth = _size(draw, 20_000)
            return "grammar", "start: " + "(" * depth + '"a"' + ")?" * depth
    return "json", _loop(draw)


def _loop(draw: Random) -> Any:
    """Definitions that lead to one another, and round in circles."""
    many = _size(draw, 300)
    names = [f"d{index}" for index in range(many)]
    one = {name: {"$ref": f"#/$defs/{draw.choice(names)}"} for name in names}
    several = {
        name: {
            draw.choice(("allOf", "anyOf", "oneOf")): [
                one[draw.choice(names)] for _ in range(draw.randrange(1, 4))
            ]
        }
        for name in names
    }
    listed = {
        name: {"type": "object", "properties": {key: one[draw.choice(names)] for key in "abc"}}
        for name in names
    }
    return {"$ref": "#/$defs/d0", "$defs": draw.choice((one, several, listed))}


def _breadth(draw: Random) -> Asked:
    """Many properties, many alternatives, many rules."""
    match draw.randrange(4):
        case 0:
            names = [f"name {index}" for index in range(_size(draw, 5_000))]
            required = draw.sample(names, draw.randrange(len(names) + 1))
            kind: dict[str, Any] = {"type": draw.choice(("string", "integer", "boolean"))}
            return "json", {
                "type": "object",
                "properties": dict.fromkeys(names, kind),
                "required": required,
                **draw.choice(({}, {"additionalProperties": draw.choice((True, False, kind))})),
            }
        case 1:
            parts = [_part(draw) for _ in range(_size(draw, 300))]
            return "json", {draw.choice(("anyOf", "oneOf", "allOf")): parts}
        case 2:
            many = _size(draw, 3_000)
            rules = [f'r{index}: "{index}" r{draw.randrange(many)}?' for index in range(many)]
            return "grammar", "\n".join(
                [f"start: {' | '.join(f'r{index}' for index in range(many))}", *rules]
            )
    properties = {f"(a|b){{{index}}}.*": _part(draw) for index in range(_size(draw, 60))}
    return "json", {"type": "object", "patternProperties": properties}


def _part(draw: Random) -> Any:
    """A small schema, some of them with numbers that are not small."""
    large = _size(draw, 10**9)
    return copy.deepcopy(
        draw.choice(
            (
                {"type": "string", "minLength": draw.choice((0, large)), "maxLength": large},
                {
                    "type": "integer",
                    "minimum": -large,
                    "maximum": large,
                    "multipleOf": draw.choice((1, 7, large)),
                },
                {"type": "number", "exclusiveMinimum": draw.uniform(-1, 1), "maximum": number(draw)},
                {
                    "type": "array",
                    "items": {"enum": [1, "a"]},
                    "minItems": draw.choice((0, large)),
                    "maxItems": large,
                },
                {"type": "string", "pattern": _pattern(draw, 2)},
                {"type": "string", "format": draw.choice(_FORMATS)},
                {"type": "object", "properties": {"a": {"const": value(draw)}}, "maxProperties": large},
                {"type": ["string", "null", "object"]},
                {"not": {"type": "string"}},
                {"const": text(draw)},
                {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
            )
        )
    )


def _listed(draw: Random) -> Asked:
    """One of many texts, alike or not, short or long."""
    many = _size(draw, 60_000)
    long = "x" * _size(draw, max(1, 400_000 // many))
    texts = [f"{long}{index}" if draw.random() < 0.9 else text(draw)[:200] for index in range(many)]
    return draw.choice((("choice", texts), ("json", {"enum": texts}), ("json", {"enum": [*texts, None, 1]})))


def _pattern(draw: Random, depth: int) -> str:
    """A regular expression, or nearly one."""
    if depth <= 0:
        return draw.choice(_ATOMS[:-3] if draw.random() < 0.98 else _ATOMS)
    parts = [_pattern(draw, depth - draw.randrange(1, 3)) for _ in range(draw.randrange(1, 5))]
    inner = draw.choice(("", "|", "?", "*")).join(parts)
    low = _size(draw, 2_000)
    return f"({inner})" + draw.choice(
        ("", "", "*", "+", "?", "*?", f"{{{low}}}", f"{{1,{low}}}", f"{{{low},}}")
    )


def _regular(draw: Random) -> Asked:
    """Expressions, one or many of which must all match."""
    match draw.randrange(5):
        case 0:
            return "json", bombs.patterns(_size(draw, 24))
        case 1:
            return "regex", draw.choice(("a?", "(a|b)*", "(.*a)", "[a-z]{1,9}", "(a|aa)+")) * _size(
                draw, 20_000
            )
        case 2:
            return (
                "regex",
                f"(.*{draw.choice(('a', '[ab]', 'x.'))}){{{_size(draw, 500)}}}.{{{_size(draw, 500)}}}",
            )
        case 3:
            patterns = [{"pattern": _pattern(draw, 3)} for _ in range(draw.randrange(1, 6))]
            return "json", {"type": "string", "allOf": patterns}
    return "regex", _pattern(draw, draw.randrange(1, 6))


def _lark(draw: Random) -> Asked:
    """A grammar of rules drawn at random, and terminals that may not be there."""
    names = [f"r{index}" for index in range(_size(draw, 60))]

    def term() -> str:
        one = (
            draw.choice(names)
            if draw.random() < 0.6
            else draw.choice(_TERMS[:-5] if draw.random() < 0.9 else _TERMS)
        )
        return one + draw.choice(("", "", "", "?", "*", "+", f"{{{_size(draw, 10_000)}}}", "~2..9"))

    def rule() -> str:
        return " | ".join(
            " ".join(term() for _ in range(draw.randrange(1, 5))) for _ in range(draw.randrange(1, 4))
        )

    lines = [f"start: {rule()}", *(f"{name}: {rule()}" for name in names)]
    lines += draw.choice(
        ([], [], ["%ignore /[ ]+/"], ["WORD: /\\w+/"], ["%import common.WORD"], [text(draw)[:100]])
    )
    if draw.random() < 0.1:
        lines += [f'last: "a"? {"b? " * _size(draw, 30_000)}', "start: last"]
    return "grammar", "\n".join(lines)


def _odd(draw: Random) -> Asked:
    """No form at all."""
    kind = draw.choice(("json", "regex", "choice", "grammar"))
    return kind, draw.choice((value(draw), text(draw), [value(draw)], {"type": value(draw)}))


def _bomb(draw: Random) -> Asked:
    """One of those that took a process once."""
    asked, _ = draw.choice(list(bombs.BOMBS.values()))
    if asked.schema is not None:
        return "json", asked.schema
    return ("choice", list(asked.choice)) if asked.choice else ("grammar", asked.grammar)


_KINDS: Final[tuple[Callable[[Random], Asked], ...]] = (
    *(_depth, _depth, _depth, _breadth, _breadth, _listed, _listed, _regular, _regular, _regular),
    *(_lark, _lark, _lark, _odd),
)


def _changed(draw: Random, asked: Asked) -> Asked:
    kind, form = asked
    if isinstance(form, (dict, list)) and draw.random() < 0.15:
        form = mutate(draw, copy.deepcopy(form))
    return kind, form


def _as_schema(asked: Asked) -> Any:
    """The constraint as a JSON Schema, for an API that takes no other."""
    kind, form = asked
    match kind:
        case "regex":
            return {
                "type": "object",
                "properties": {"a": {"type": "string", "pattern": form}},
                "required": ["a"],
            }
        case "choice":
            return {"type": "object", "properties": {"a": {"enum": form}}, "required": ["a"]}
        case "grammar":
            return {"type": "object", "properties": {"a": {"type": "string", "maxLength": len(str(form))}}}
    return form


def _tool(asked: Asked) -> dict[str, Any]:
    return {"name": "act", "description": "", "parameters": _as_schema(asked)}


def _common(draw: Random) -> dict[str, Any]:
    return {"temperature": draw.choice((0, 1)), "stream": draw.random() < 0.3}


def _length(draw: Random) -> int:
    return draw.choice((1, 2, 4, 16, 64))


def _chat(draw: Random, asked: Asked) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Say it"}], "max_tokens": _length(draw), **_common(draw)}
    if draw.random() < 0.05:
        body["n"] = draw.choice((2, 8))
    roll = draw.random()
    if roll < 0.3:
        body |= {"tools": [{"type": "function", "function": _tool(asked)}], "tool_choice": "required"}
    elif roll < 0.4:
        body["tools"] = [{"type": "function", "function": _tool(asked)}]
        body["response_format"] = {"type": "json_object"}
    elif roll < 0.6:
        form = {"name": "form", "schema": _as_schema(asked)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    else:
        body["structured_outputs"] = dict([asked])
    return body


def _responses(draw: Random, asked: Asked) -> dict[str, Any]:
    body: dict[str, Any] = {"input": "Say it", "max_output_tokens": _length(draw), **_common(draw)}
    if draw.random() < 0.5:
        return {**body, "tools": [{"type": "function", **_tool(asked)}], "tool_choice": "required"}
    if draw.random() < 0.3:
        return {**body, "structured_outputs": dict([asked])}
    form = {"type": "json_schema", "name": "form", "schema": _as_schema(asked)}
    return {**body, "text": {"format": form}}


def _anthropic(draw: Random, asked: Asked) -> dict[str, Any]:
    schema = _as_schema(asked)
    body = {"messages": [{"role": "user", "content": "Say it"}], "max_tokens": _length(draw), **_common(draw)}
    if draw.random() < 0.5:
        tools = [{"name": "act", "input_schema": schema}]
        return {**body, "tools": tools, "tool_choice": {"type": "any"}}
    return {**body, "output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _completions(draw: Random, asked: Asked) -> dict[str, Any]:
    return {
        "prompt": "Say it",
        "max_tokens": _length(draw),
        "structured_outputs": dict([asked]),
        **_common(draw),
    }


_BODIES: Final[dict[Target, Callable[[Random, Asked], dict[str, Any]]]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "completions": _completions,
}

CONSTRAINTS: Final = Suite("constraints", make_constraint_case, lanes=4, timed=True, most_slope=131_072.0)
"""All grammars kept would add 300,000 bytes a case. Once in thousands of cases several large ones meet, and
what the allocator does not give back of them is a step of up to 300 MiB."""
