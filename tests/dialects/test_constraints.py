"""The constraints of the four APIs reach the engine in one form."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import anthropic.types as anthropic
import openai.types.chat as chat
import openai.types.responses as responses
import pytest

from lightning_core.dialects import get_dialect
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ApiError
from tests.dialects.test_options import read

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMES = ("look", "take")


def chat_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [chat_tool(name) for name in NAMES],
    "responses": [{"type": "function", "name": name, "strict": True} for name in NAMES],
    "anthropic": [{"name": name, "input_schema": {"type": "object"}} for name in NAMES],
}


def asked(dialect: str, *, tools: bool = False, **fields: Any) -> ChatRequest:
    request: ChatRequest = read(dialect, **({"tools": TOOLS[dialect]} if tools else {}), **fields).chat
    return request


def told(request: ChatRequest) -> list[str]:
    """The tools that the model is told of."""
    return [tool["function"]["name"] for tool in request.tools or ()]


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
        ("anthropic", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("anthropic", {"output_format": {"type": "json_schema", "schema": SCHEMA}}),
        ("chat", {"structured_outputs": {"json": SCHEMA}}),
        ("completions", {"structured_outputs": {"json": SCHEMA}}),
        ("responses", {"structured_outputs": {"json": '{"type": "object", "properties": {"city": '
                       '{"type": "string"}}, "required": ["city"]}'}}),
    ],
)  # fmt: skip
def test_a_schema_is_what_the_reply_must_match(dialect: str, fields: dict[str, Any]) -> None:
    assert asked(dialect, **fields).constraint == Constraint(schema=SCHEMA)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"response_format": {"type": "json_object"}}),
        ("responses", {"text": {"format": {"type": "json_object"}}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}}),
        ("completions", {"structured_outputs": {"json_object": True}}),
    ],
)
def test_json_without_a_schema_is_any_object(dialect: str, fields: dict[str, Any]) -> None:
    assert asked(dialect, **fields).constraint == Constraint(schema={"type": "object"})


@pytest.mark.parametrize("dialect", ["chat", "completions", "responses"])
def test_what_vllm_can_ask_for_can_be_asked_for_here(dialect: str) -> None:
    def constraint(kind: str, value: Any) -> Constraint | None:
        return asked(dialect, structured_outputs={kind: value}).constraint

    assert constraint("regex", "a+") == Constraint(regex="a+")
    assert constraint("choice", ["yes", "no"]) == Constraint(choice=("yes", "no"))
    grammar = 'start: "a"'
    assert constraint("grammar", grammar) == Constraint(grammar=grammar)


@pytest.mark.parametrize(
    ("dialect", "choice"),
    [("chat", "required"), ("responses", "required"), ("anthropic", {"type": "any"})],
)
def test_any_tool_can_be_forced(dialect: str, choice: Any) -> None:
    request = asked(dialect, tools=True, tool_choice=choice)
    assert request.constraint == Constraint(tools=NAMES)
    assert request.parallel
    assert told(request) == list(NAMES)


@pytest.mark.parametrize(
    ("dialect", "choice"),
    [
        ("chat", {"type": "function", "function": {"name": "take"}}),
        ("responses", {"type": "function", "name": "take"}),
        ("anthropic", {"type": "tool", "name": "take"}),
    ],
)
def test_a_named_tool_is_called_once(dialect: str, choice: Any) -> None:
    request = asked(dialect, tools=True, tool_choice=choice)
    assert request.constraint == Constraint(tools=("take",), parallel=False)
    assert not request.parallel
    assert told(request) == list(NAMES)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"parallel_tool_calls": False}),
        ("responses", {"parallel_tool_calls": False}),
        ("anthropic", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
def test_a_reply_may_be_held_to_one_call(dialect: str, fields: dict[str, Any]) -> None:
    assert asked(dialect, tools=True).parallel
    request = asked(dialect, tools=True, **fields)
    assert (request.parallel, request.constraint) == (False, None)


def allowed(dialect: str, mode: str, *names: str) -> dict[str, Any]:
    tools = [
        tool for tool in TOOLS[dialect] if tool.get("name", tool.get("function", {}).get("name")) in names
    ]
    inner = {"mode": mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": inner} if dialect == "chat" else inner)}


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_the_model_is_told_of_the_allowed_tools_alone(dialect: str) -> None:
    free = asked(dialect, tools=True, tool_choice=allowed(dialect, "auto", "take"))
    assert (told(free), free.constraint) == (["take"], None)
    forced = asked(dialect, tools=True, tool_choice=allowed(dialect, "required", "take"))
    assert (told(forced), forced.constraint) == (["take"], Constraint(tools=("take",)))


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_a_format_stays_beside_tools_and_gives_way_to_a_forced_one(dialect: str) -> None:
    form = {"type": "json_object"}
    fields = {"response_format": form} if dialect == "chat" else {"text": {"format": form}}
    assert asked(dialect, tools=True, **fields).constraint == Constraint(schema={"type": "object"})
    forced = asked(dialect, tools=True, tool_choice="required", **fields)
    assert forced.constraint == Constraint(tools=NAMES)


def kinds(hint: Any) -> set[str]:
    """The values of `type` that a field of an SDK's request may have."""
    if hasattr(hint, "__total__"):
        return set(get_args(get_type_hints(hint)["type"]))
    return {kind for part in get_args(hint) if not isinstance(part, str) for kind in kinds(part)}


CHAT = get_type_hints(chat.completion_create_params.CompletionCreateParamsNonStreaming)
RESPONSES = get_type_hints(responses.response_create_params.ResponseCreateParamsNonStreaming)
TEXT = get_type_hints(responses.ResponseTextConfigParam)
MESSAGES = get_type_hints(anthropic.message_create_params.MessageCreateParamsNonStreaming)
OUTPUT = get_type_hints(anthropic.OutputConfigParam)
OF_OPENAI = {"mcp", "programmatic_tool_calling"}
"""Tools that OpenAI runs itself."""
OF_THE_APP = {"custom", "shell", "apply_patch"}
"""Tools that are no functions and that the app runs."""


@pytest.mark.parametrize(
    ("hint", "known"),
    [
        (CHAT["response_format"], {"text", "json_object", "json_schema"}),
        (TEXT["format"], {"text", "json_object", "json_schema"}),
        (OUTPUT["format"], {"json_schema"}),
        (CHAT["tool_choice"], {"function", "allowed_tools", "custom"}),
        (MESSAGES["tool_choice"], {"auto", "any", "tool", "none"}),
        (RESPONSES["tool_choice"], {"function", "allowed_tools", *OF_OPENAI, *OF_THE_APP}),
    ],
)
def test_every_form_of_the_sdks_is_known(hint: Any, known: set[str]) -> None:
    hosted = {
        kind for kind in kinds(hint) if kind.startswith(("file_", "web_", "computer", "image_", "code_"))
    }
    assert kinds(hint) - hosted == known


@pytest.mark.parametrize("kind", sorted(OF_OPENAI))
def test_a_tool_that_openai_runs_can_not_be_forced(kind: str) -> None:
    with pytest.raises(ApiError, match=r"tool_choice = .* is not supported here") as caught:
        asked("responses", tools=True, tool_choice={"type": kind, "name": "x", "server_label": "x"})
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("kind", sorted(OF_THE_APP))
def test_a_tool_that_the_app_runs_can_be_forced(kind: str) -> None:
    tool = {"type": kind, "name": "x"} if kind == "custom" else {"type": kind}
    name = tool.get("name", kind)
    body = {"input": "hi", "tools": [tool], "tool_choice": tool}
    asked = get_dialect("responses").constraint(body)
    assert asked is not None
    assert asked.tools == (name,)
