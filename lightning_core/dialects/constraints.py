"""The forms a request can ask of its reply: a format, one of the texts given, a call of a tool.

Each API says so in words of its own. Here they become one `ToolChoice` and one `Constraint`, to which the
engine holds the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lightning_core.dialects.lenient import Json
from lightning_core.dialects.options import Option, honoured, refused
from lightning_core.dialects.strict import flag, invalid, mapping, missing, short, unsupported
from lightning_core.dialects.tools import qualified, without_hosted
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.dialects.writing import to_json
from lightning_core.texts.json_text import JsonError, read_json

FROM_VLLM_STRUCTURED: Final[dict[str, Option]] = {
    **honoured(
        *("structured_outputs", "structured_outputs.json", "structured_outputs.json_object"),
        *("structured_outputs.regex", "structured_outputs.choice", "structured_outputs.grammar"),
        note="as vLLM has it; a grammar is in Lark's notation",
    ),
    **refused(
        "say it in the schema; leave it out",
        *("structured_outputs.structural_tag", "structured_outputs.whitespace_pattern"),
    ),
    **refused(
        "vLLM 0.12 has taken it away; give structured_outputs",
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    ),
    **refused(
        "say it in the schema; leave it out",
        **{
            f"structured_outputs.disable_{name}": (False,)
            for name in ("any_whitespace", "additional_properties")
        },
    ),
}
ANY_OBJECT: Final[Json] = {"type": "object"}
_KINDS: Final = ("json", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the tools that a request has may be called, and which must be."""

    mode: Literal["auto", "none", "required"] = "auto"
    named: str | None = None
    """The one that must be called; it is called once."""
    allowed: tuple[str, ...] | None = None
    """The model is told of these alone; None: of all."""
    parallel: bool = True
    """Whether one reply may hold several calls."""

    def constraint(self, tools: list[Json] | None) -> Constraint | None:
        """Returns the form asked of the reply. Raises ApiError for a tool that is not in the request."""
        if self.mode != "required":
            return None
        if not tools:
            raise invalid("tool_choice", "tool_choice needs tools")
        names = tuple(str(tool["function"]["name"]) for tool in tools)
        if self.named is not None and self.named not in names:
            raise invalid("tool_choice", f"tool_choice names {short(self.named)}, which is no tool here")
        return Constraint(tools=names if self.named is None else (self.named,), parallel=self.parallel)


def read_tool_choice(body: Json) -> ToolChoice:
    """The choice in OpenAI's words: Chat Completions keep names one level deeper than Responses."""
    parallel = body.get("parallel_tool_calls") is None or flag(body, "parallel_tool_calls")
    choice = _choice(body.get("tool_choice"))
    return replace(choice, parallel=parallel and choice.named is None)


def _choice(value: Any) -> ToolChoice:
    match value:
        case None | "auto":
            return ToolChoice()
        case "none" | "required":
            return ToolChoice(value)
        case {"type": ("function" | "custom") as kind, **told}:
            return ToolChoice("required", named=_name(told.get(kind, told)))
        case {"type": ("local_shell" | "shell" | "apply_patch") as kind}:
            return ToolChoice("required", named=kind)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}} | {
            "type": "allowed_tools",
            "mode": mode,
            "tools": list(tools),
        }:
            return ToolChoice(_mode(mode), allowed=tuple(map(_name, without_hosted(tools))))
    raise unsupported(
        "tool_choice",
        f"tool_choice = {short(value)} is not supported here; use 'auto', 'none', 'required', "
        "the name of a function, or allowed_tools",
    )


def _mode(value: Any) -> Literal["auto", "required"]:
    if value not in ("auto", "required"):
        raise invalid("tool_choice", f"tool_choice.mode must be 'auto' or 'required', not {short(value)}")
    return "required" if value == "required" else "auto"


def _name(tool: Any) -> str:
    match tool:
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
            return name
        case {"namespace": str(namespace), "name": str(name)}:
            return qualified(namespace, name)
        case {"name": str(name)} | {"type": ("local_shell" | "shell" | "apply_patch") as name}:
            return name
    raise invalid("tool_choice", f"tool_choice holds {short(tool)}; name tools that the app runs")


def read_tools(tools: Any, choice: ToolChoice) -> list[Json] | None:
    """The functions that the model is told of: those allowed; with the mode "none", of none."""
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise invalid("tools", "tools must be a list")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    if choice.mode == "none":
        return None
    if choice.allowed is None:
        return tools
    return [tool for tool in tools if tool["function"]["name"] in choice.allowed] or None


def _check_tool(tool: Any, param: str) -> None:
    """Raise ApiError for what is no function of the app's own."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise unsupported(
            param,
            f"{param} has the type {short(kind)}; only functions that the app runs are supported",
        )
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise missing(param, f"{param}.function needs a name")


def read_format(value: Any, param: str) -> Constraint | None:
    """A format that a reply must have; Chat Completions keep a schema one level deeper than the others."""
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", "schema": schema} if schema is not None:
            return _schema(schema, f"{param}.schema")
        case {"type": "json_object"}:
            return Constraint(schema=ANY_OBJECT)
        case {"type": "json_schema", "json_schema": dict(told)}:
            return _schema(told.get("schema"), f"{param}.json_schema.schema")
        case {"type": "json_schema"}:
            return _schema(value.get("schema"), f"{param}.schema")
    raise unsupported(
        param,
        f"{param} = {short(value)} is not supported here; use text, json_object or json_schema",
    )


def _schema(value: Any, param: str) -> Constraint:
    if value is None:
        return Constraint(schema=ANY_OBJECT)
    if isinstance(value, str):
        try:
            value = read_json(value.encode())
        except JsonError as error:
            raise invalid(param, f"{param} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid(param, f"{param} must be an object, not {short(value)}")
    return Constraint(schema=value)


def read_constraint(body: Json, form: Constraint | None, forced: Constraint | None) -> Constraint | None:
    """Returns the form of the reply: a tool that must be called, or the format, or one of vLLM's options.

    Raises ApiError if there is more than one of the latter.
    """
    given = {} if form is None else {"response_format": form}
    inner = mapping(body, "structured_outputs") or {}
    for kind in _KINDS:
        if inner.get(kind) is not None:
            param = f"structured_outputs.{kind}"
            given[param] = _structured(kind, inner[kind], param)
    if flag(inner, "json_object"):
        given["structured_outputs.json_object"] = Constraint(schema=ANY_OBJECT)
    if len(given) > 1:
        *_, last = given
        raise invalid(last, f"{' and '.join(given)} each say what the reply is to match; give one of them")
    return forced or next(iter(given.values()), None)


def _structured(kind: str, value: Any, param: str) -> Constraint:
    match kind, value:
        case "json", _:
            return _schema(value, param)
        case "regex", str():
            return Constraint(regex=value)
        case "grammar", str():
            return Constraint(grammar=value)
        case "choice", [_, *_] if all(isinstance(each, str) and each for each in value):
            return Constraint(choice=tuple(value))
    wanted = "a list of strings" if kind == "choice" else "a string"
    raise invalid(param, f"{param} must be {wanted}, not {short(value)}")


def in_words(chat: ChatRequest) -> ChatRequest:
    """The same request, whose prompt asks for what its constraint would have held the reply to."""
    asked = chat.constraint
    if asked is None or chat.prompt is not None:
        return replace(chat, constraint=None)
    first, *rest = chat.messages or [{}]
    if first.get("role") == "system":
        told = {**first, "content": f"{first['content']}\n\n{_words(asked)}"}
        return replace(chat, messages=[told, *rest], constraint=None)
    told = {"role": "system", "content": _words(asked)}
    return replace(chat, messages=[told, *chat.messages], constraint=None)


def _words(asked: Constraint) -> str:
    if asked.tools is not None:
        return f"Answer with a call of a function: {' or '.join(asked.tools)}."
    if asked.choice is not None:
        return f"Answer with one of these, and nothing else: {to_json(asked.choice).decode()}"
    if asked.schema is not None:
        return f"Answer with JSON alone, valid for this JSON Schema: {to_json(asked.schema).decode()}"
    if asked.regex is not None:
        return f"Answer with a text that matches this regular expression: {asked.regex}"
    return f"Answer with a text that this grammar, in Lark's notation, describes:\n{asked.grammar}"
