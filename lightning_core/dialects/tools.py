"""Tools of the Responses API, and custom tools of Chat Completions, as functions of a chat.

A chat template knows functions alone. So each tool that the app runs is told to the model as a function, and
the model's call of it is given to the app as the item that the app waits for:

| tool | function | item |
|---|---|---|
| `custom` | of the same name, with one text, `input` | `custom_tool_call` |
| one of a `namespace` | `namespace.name`: a name that no other tool may have | with its `namespace` |
| `local_shell`, `shell`, `apply_patch` | of that name | `local_shell_call`, and so on |

A tool that the provider would run (`HOSTED`) is left out: the policy's server has no web search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lightning_core.dialects.lenient import Json
from lightning_core.dialects.strict import invalid, mapping, missing, short, string, text, unsupported
from lightning_core.dialects.writing import to_json
from lightning_core.errors import ApiError
from lightning_core.texts.json_text import JsonError, read_written

INPUT: Final = "input"
"""The argument that holds the text of a custom tool."""
HOSTED: Final = frozenset(
    (
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        *("file_search", "code_interpreter", "image_generation", "mcp", "tool_search"),
        *("computer", "computer_use_preview", "programmatic_tool_calling"),
    )
)
"""Types of tools that OpenAI's own servers run, or that need a model that sees."""
_TEXT: Final[Json] = {"type": "string"}
_NUMBER: Final[Json] = {"type": "integer"}
_TEXTS: Final[Json] = {"type": "array", "items": _TEXT}


def _function(name: str, description: str, required: list[str], **properties: Json) -> Json:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


_RUN_BY_THE_APP: Final = MappingProxyType(
    {
        "local_shell": _function(
            "local_shell",
            "Runs a command, without a shell around it, on the user's machine.",
            ["command"],
            command=_TEXTS,
            working_directory=_TEXT,
            timeout_ms=_NUMBER,
            env={"type": "object", "additionalProperties": _TEXT},
        ),
        "shell": _function(
            "shell",
            "Runs shell commands on the user's machine, one after another.",
            ["commands"],
            commands=_TEXTS,
            timeout_ms=_NUMBER,
            max_output_length=_NUMBER,
        ),
        "apply_patch": _function(
            "apply_patch",
            "Creates, updates or deletes a file. `diff` is a unified diff without the lines that name files; "
            "it is left out to delete a file.",
            ["type", "path"],
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
    }
)
"""Tools by type that the app runs. So their arguments are those of the items they come back as."""
_ACTIONS: Final[Mapping[str, tuple[str, Json]]] = MappingProxyType(
    {
        "local_shell": ("action", {"type": "exec", "command": [], "env": {}}),
        "shell": ("action", {"commands": []}),
        "apply_patch": ("operation", {"type": "update_file", "path": ""}),
    }
)
"""The field of a call's item that holds the arguments, and what that holds if the model left it out."""
_CALLS: Final = MappingProxyType({f"{kind}_call": kind for kind in _ACTIONS})
CALLS: Final = frozenset(("function_call", "custom_tool_call", *_CALLS))
"""Types of the items that are calls of tools."""
OUTPUTS: Final = frozenset(f"{kind}_output" for kind in CALLS)
"""Types of the items that are their results."""


def item_type(item: Any) -> str:
    """The type of an item as stored, "" where it names none: a request may hold anything."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    return kind if isinstance(kind, str) else ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool, as the model is told of it and as the app knows it."""

    function: Json
    """In the form of Chat Completions."""
    kind: str
    """Its type in the request."""
    name: str
    namespace: str | None = None


# tools of a request ------------------------------------------------------------------------
def read_offers(tools: Any) -> list[Offer] | None:
    """The tools that the app runs; None if there are none. Raises ApiError for what is no tool."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise invalid("tools", "tools must be a list")
    return [offer for index, tool in enumerate(tools) for offer in _offers(tool, f"tools[{index}]")] or None


def find_offers(tools: Any) -> dict[str, Offer]:
    """The same by the name that the model is told, of a request that may hold anything."""
    found: dict[str, Offer] = {}
    for tool in tools if isinstance(tools, list) else ():
        with suppress(ApiError):
            found |= {offer.function["function"]["name"]: offer for offer in _offers(tool, "tools")}
    return found


def find_hosted(tools: Any) -> list[str]:
    """The types of the tools that the model is not told of."""
    return [tool["type"] for tool in (tools if isinstance(tools, list) else ()) if _is_hosted(tool)]


def without_hosted(tools: list[Any]) -> list[Any]:
    """The tools that the app runs."""
    return [tool for tool in tools if not _is_hosted(tool)]


def _is_hosted(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind in HOSTED


def _offers(tool: Any, param: str) -> list[Offer]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "namespace":
        return _of_namespace(tool, param)
    if isinstance(kind, str) and kind in _RUN_BY_THE_APP:
        _check_local(tool, param)
        return [Offer(_RUN_BY_THE_APP[kind], kind, kind)]
    return [] if _is_hosted(tool) else [_offer(tool, param)]


def _offer(tool: Any, param: str, namespace: str | None = None) -> Offer:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise unsupported(
            param,
            f"{param} has the type {short(kind)}, which is not known here; served are function, custom, "
            f"namespace, {', '.join(_RUN_BY_THE_APP)}",
        )
    name = string(tool, "name", param)
    told = name if namespace is None else qualified(namespace, name)
    if kind == "custom":
        function = custom_function(told, text(tool, "description"), mapping(tool, "format"), param)
    else:
        kept = {key: tool[key] for key in ("description", "parameters") if tool.get(key) is not None}
        function = {"type": "function", "function": {"name": told, **kept}}
    return Offer(function, kind, name, namespace)


def _of_namespace(tool: Json, param: str) -> list[Offer]:
    namespace, inner = string(tool, "name", param), tool.get("tools")
    if not isinstance(inner, list):
        raise invalid(f"{param}.tools", f"{param}.tools must be a list")
    return [_offer(each, f"{param}.tools[{index}]", namespace) for index, each in enumerate(inner)]


def qualified(namespace: str, name: str) -> str:
    """Returns the name of a namespace's tool for the model. No other tool's name may hold a point."""
    return f"{namespace}.{name}"


def _check_local(tool: Json, param: str) -> None:
    kind = (mapping(tool, "environment") or {}).get("type", "local")
    if kind != "local":
        raise unsupported(
            f"{param}.environment",
            f"{param}.environment has the type {short(kind)}: there are no containers here; use local",
        )


# custom tools ------------------------------------------------------------------------------
def custom_function(name: str, description: str | None, form: Json | None, param: str) -> Json:
    """A custom tool as a function with one text. A grammar is told in the description; a regular expression
    is also part of the schema, so a call that is forced matches it."""
    told, schema = description or "", dict(_TEXT)
    match form:
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "syntax": "lark" | "regex" as syntax, "definition": str(definition)}:
            told += f"\n\nThe input matches this {_SYNTAX[syntax]}:\n{definition}"
            if syntax == "regex":
                schema["pattern"] = f"^(?:{definition})$"
        case _:
            raise invalid(
                f"{param}.format",
                f"{param}.format = {short(form)} is not valid; use text, or a grammar with its syntax, lark "
                "or regex, and its definition",
            )
    return _function(name, told.strip(), [INPUT], **{INPUT: schema})


_SYNTAX: Final = MappingProxyType({"lark": "grammar in Lark's notation", "regex": "regular expression"})


def custom_arguments(given: str) -> str:
    """The arguments of a custom tool's call as the model wrote them, as far as is known."""
    return json.dumps({INPUT: given}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The text of a custom tool's call; all that the model wrote, if it did not write `input`."""
    given = _object(arguments).get(INPUT)
    return given if isinstance(given, str) else arguments


def _object(arguments: str) -> Json:
    try:
        value = read_written(arguments)
    except JsonError:
        return {}
    return value if isinstance(value, dict) else {}


def chat_functions(tools: Any) -> Any:
    """The tools of a Chat Completions request, with functions in place of custom tools."""
    if not isinstance(tools, list):
        return tools
    return [
        _chat_function(tool["custom"], f"tools[{index}].custom") if _is_custom(tool) else tool
        for index, tool in enumerate(tools)
    ]


def _is_custom(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "custom" and isinstance(tool.get("custom"), dict)


def _chat_function(tool: Json, param: str) -> Json:
    form = mapping(tool, "format")
    if form is not None and isinstance(form.get("grammar"), dict):
        form = {"type": form.get("type"), **form["grammar"]}  # one level deeper than in Responses
    return custom_function(string(tool, "name", param), text(tool, "description"), form, param)


def custom_names(tools: Any) -> frozenset[str]:
    """The names of the custom tools of a Chat Completions request, which may hold anything."""
    given = [
        tool["custom"].get("name") for tool in (tools if isinstance(tools, list) else ()) if _is_custom(tool)
    ]
    return frozenset(name for name in given if isinstance(name, str))


def chat_call(call: Json, custom: frozenset[str]) -> Json:
    """A call as Chat Completions give it to the app."""
    name = call["function"]["name"]
    if name not in custom:
        return call
    given = {"name": name, "input": custom_input(call["function"]["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": given}


def function_call(call: Any) -> Any:
    """A call in a message of Chat Completions, with that of a custom tool as one of a function."""
    match call:
        case {"type": "custom", "custom": {"name": str(name), "input": str(given)}}:
            function = {"name": name, "arguments": custom_arguments(given)}
            return {"id": call.get("id"), "type": "function", "function": function}
    return call


# calls -------------------------------------------------------------------------------------
def item_of_call(call: Json, offers: Mapping[str, Offer]) -> Json:
    """The item, without its id and status, that gives the app a call in the form of a chat. A name that was
    not offered is given as the model wrote it."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    offer = offers.get(name)
    item = {"type": "function_call", "call_id": call["id"]}
    if offer is None:
        return {**item, "name": name, "arguments": arguments}
    if offer.kind in _ACTIONS:
        field, blank = _ACTIONS[offer.kind]
        return {**item, "type": f"{offer.kind}_call", field: {**blank, **_object(arguments)}}
    item["name"] = offer.name
    if offer.namespace is not None:
        item["namespace"] = offer.namespace
    if offer.kind == "custom":
        return {**item, "type": "custom_tool_call", "input": custom_input(arguments)}
    return {**item, "arguments": arguments}


def call_of_item(item: Json, param: str) -> Json:
    """A call, one of CALLS, in the form of a chat. Raises ApiError for what it lacks."""
    kind = item["type"]
    if kind in _CALLS:
        name = _CALLS[kind]
        action = mapping(item, _ACTIONS[name][0])
        if action is None:
            raise missing(f"{param}.{_ACTIONS[name][0]}")
        arguments = json.dumps(_given(name, action), ensure_ascii=False)
    else:
        name, namespace = string(item, "name", param), text(item, "namespace")
        name = name if namespace is None else qualified(namespace, name)
        custom = kind == "custom_tool_call"
        arguments = string(item, "input" if custom else "arguments", param)
        arguments = custom_arguments(arguments) if custom else arguments
    return {
        "id": string(item, "call_id", param),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _given(name: str, action: Json) -> Json:
    """The arguments that the model gave: what `item_of_call` added, it did not write."""
    added = _ACTIONS[name][1] if name != "apply_patch" else {}
    return {key: value for key, value in action.items() if value is not None and value != added.get(key)}


def result_id(item: Mapping[str, Any]) -> Any:
    """The id of the call whose result an item is. A local shell's, as OpenAI has it, is called `id`."""
    return item.get("call_id") or (item.get("id") if item.get("type") == "local_shell_call_output" else None)


def result_text(item: Mapping[str, Any]) -> Any:
    """Returns the content of a result as a request gives it: text, or parts of a message. A shell's is
    JSON."""
    output = item.get("output")
    if item.get("type") == "shell_call_output":
        return to_json(output).decode()
    if item.get("type") == "apply_patch_call_output":
        return "\n".join(each for each in (item.get("status"), output) if isinstance(each, str))
    return output
