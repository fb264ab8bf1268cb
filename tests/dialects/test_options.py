"""Each option that an SDK can send is in its dialect's table, and docs/gateway.md prints these tables.

After a change of a table, `python -m tests.dialects.test_options` prints them into the page again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as completions
import openai.types.responses.response_create_params as responses
import orjson
import pytest
from anthropic.types import message_create_params as anthropic
from anthropic.types.beta import message_create_params as anthropic_beta

from lightning_core.dialects import DIALECTS, get_dialect
from lightning_core.dialects.upstream import Constraint, Shaping
from lightning_core.errors import ApiError

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
TABLES = re.compile(r"(?<=<!-- options -->\n\n).*?(?=\n\n<!-- /options -->)", re.DOTALL)
MESSAGES = [{"role": "user", "content": "hi"}]
LEAST: dict[str, dict[str, Any]] = {
    "chat": {"messages": MESSAGES},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "anthropic": {"messages": MESSAGES, "max_tokens": 5},
}
NESTED = ("stream_options", "reasoning", "text", "thinking", "output_config")
"""Options that hold options."""
REQUESTS = [
    ("chat", chat.CompletionCreateParamsNonStreaming),
    ("chat", chat.CompletionCreateParamsStreaming),
    ("completions", completions.CompletionCreateParamsNonStreaming),
    ("completions", completions.CompletionCreateParamsStreaming),
    ("responses", responses.ResponseCreateParamsNonStreaming),
    ("responses", responses.ResponseCreateParamsStreaming),
    ("anthropic", anthropic.MessageCreateParamsNonStreaming),
    ("anthropic", anthropic.MessageCreateParamsStreaming),
    ("anthropic", anthropic_beta.MessageCreateParamsNonStreaming),
    ("anthropic", anthropic_beta.MessageCreateParamsStreaming),
]


def fields(kind: Any) -> set[str]:
    """The fields of a typed dictionary, or of every one in a union."""
    if hasattr(kind, "__total__"):
        return set(get_type_hints(kind))
    return {name for part in get_args(kind) if get_origin(kind) for name in fields(part)}


def option_names(kind: Any) -> Iterator[str]:
    hints = get_type_hints(kind)
    for name in hints:
        yield name
        if name in NESTED:
            yield from (f"{name}.{inner}" for inner in fields(hints[name]))


@pytest.mark.parametrize(("dialect", "kind"), REQUESTS)
def test_every_option_of_the_sdks_is_honoured_ignored_or_refused(dialect: str, kind: Any) -> None:
    names = set(option_names(kind))
    assert len(names) > 16
    new = sorted(names - get_dialect(dialect).options.by_name.keys())
    assert not new, f"{kind.__module__} brings {new}: add each to OPTIONS in dialects/{dialect}.py"


def test_nested_options_are_found_in_the_sdks_types() -> None:
    assert {"text.format", "reasoning.effort"} < set(option_names(responses.ResponseCreateParamsStreaming))
    assert {"thinking.type", "output_config.format"} < set(
        option_names(anthropic.MessageCreateParamsStreaming)
    )


def read(dialect: str, **fields: Any) -> Any:
    reader = get_dialect(dialect)()
    return reader.read(orjson.dumps({**LEAST[dialect], **fields}), None, (None, None))


def placed(name: str, value: Any) -> dict[str, Any]:
    """The option at its place in a request."""
    outer, _, inner = name.rpartition(".")
    return {outer: {inner: value}} if outer else {name: value}


@pytest.mark.parametrize("dialect", LEAST)
def test_each_refused_option_is_refused_by_name_with_what_to_do(dialect: str) -> None:
    for name, option in get_dialect(dialect).options.by_name.items():
        if option.answer == "refused":
            with pytest.raises(ApiError) as caught:
                read(dialect, **placed(name, "asked for"))
            assert (caught.value.status, caught.value.code) == (400, "unsupported_value")
            assert caught.value.param == name
            assert str(caught.value) == f"{name} = 'asked for' is not supported here: {option.note}"
            for value in (None, *option.neutral):
                read(dialect, **placed(name, value))


@pytest.mark.parametrize("dialect", LEAST)
def test_an_ignored_option_changes_nothing_in_what_the_engine_is_asked(dialect: str) -> None:
    plain = read(dialect).chat
    for name, option in get_dialect(dialect).options.by_name.items():
        if option.answer == "ignored":
            value: Any = {"any": "thing"} if name == "metadata" else "anything"
            assert read(dialect, **placed(name, value)).chat == plain, name


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        ("chat", {"reasoning_effort": "none"}),
        ("chat", {"reasoning": {"effort": "none"}}),
        ("chat", {"reasoning": {"enabled": False}}),
        ("chat", {"thinking": {"type": "disabled"}}),
        ("chat", {"enable_thinking": False}),
        ("chat", {"enable_thinking": False, "reasoning_effort": "none"}),
        ("responses", {"reasoning": {"effort": "none"}}),
        ("anthropic", {"thinking": {"type": "disabled"}}),
        ("anthropic", {"output_config": {"effort": "none"}}),
    ],
)
def test_the_effort_reaches_the_engine(dialect: str, asked: dict[str, Any]) -> None:
    assert read(dialect, **asked).chat.effort == "none"
    assert read(dialect).chat.effort is None


@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"reasoning": {"enabled": True}}, "default"),
        ({"thinking": {"type": "enabled", "budget_tokens": 500}}, "default"),
        ({"enable_thinking": True, "reasoning_effort": "high"}, "high"),
        ({"reasoning": {"max_tokens": 100}}, None),
    ],
)
def test_a_chat_says_in_its_clients_ways_how_much_to_think(asked: dict[str, Any], effort: str | None) -> None:
    assert read("chat", **asked).chat.effort == effort


@pytest.mark.parametrize("dialect", LEAST)
def test_top_k_and_the_like_reach_the_engine(dialect: str) -> None:
    asked = {"top_k": 5}
    wanted = Shaping(top_k=5)
    if dialect != "anthropic":
        asked |= {
            "min_p": 0.25,
            "presence_penalty": 1,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.5,
            "logit_bias": {"7": 2, "11": -100},
        }
        wanted = Shaping(
            top_k=5,
            min_p=0.25,
            presence=1.0,
            frequency=-0.5,
            repetition=1.5,
            bias=((11, -100.0), (7, 2.0)),
        )
    assert read(dialect, **asked).chat.shaping == wanted
    assert read(dialect).chat.shaping == Shaping()


def test_a_json_object_with_a_schema_is_held_to_it() -> None:
    schema = {"type": "object", "properties": {"name": {"enum": ["jo", "al"]}}, "required": ["name"]}
    asked = {"response_format": {"type": "json_object", "schema": schema}}
    assert read("chat", **asked).chat.constraint == Constraint(schema=schema)
    assert read("chat", response_format={"type": "json_object"}).chat.constraint == Constraint(
        schema={"type": "object"}
    )


def test_the_page_prints_the_tables() -> None:
    assert TABLES.findall(PAGE.read_text()) == [tables()], "run python -m tests.dialects.test_options"


def tables() -> str:
    """The options of all APIs as Markdown, those with one answer and reason in one row."""
    rows = ["| API | option | answer | |", "|---|---|---|---|"]
    for dialect in DIALECTS:
        known = sorted(dialect.options.by_name.items(), key=lambda item: (item[1].answer, item[1].note))
        for (answer, note), group in groupby(known, key=lambda item: (item[1].answer, item[1].note)):
            names = ", ".join(_named(name, option.neutral) for name, option in group)
            rows.append(f"| `/v1{dialect.path}` | {names} | {answer} | {note} |")
    return "\n".join(rows)


def _named(name: str, neutral: tuple[Any, ...]) -> str:
    values = " or ".join(f"`{orjson.dumps(value).decode()}`" for value in neutral)
    return f"`{name}`" + (f" (but {values})" if values else "")


if __name__ == "__main__":
    PAGE.write_text(TABLES.sub(lambda _: tables(), PAGE.read_text()))
