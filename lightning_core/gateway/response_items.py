"""The items and tools of a Responses request, as the messages and tools of a chat.

A reply with text and tool calls is one assistant message to the chat template, but several items here.
Items that follow one another are joined to that message again, so that the prompt of the next call
begins with exactly the tokens of this one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.fields import short
from lightning_core.gateway.messages import read_content, read_tools
from lightning_core.gateway.refusals import invalid, missing, unsupported

_ROLES: Final = ("assistant", "developer", "system", "user")
_TEXT_PARTS: Final = MappingProxyType({"input_text": "text", "output_text": "text", "refusal": "refusal"})


def read_items(value: Any) -> list[dict[str, Any]]:
    """The messages that a request's `input` adds to its conversation."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise invalid("input", "input must be a string or a list with at least one item")
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Any, param: str) -> None:
    if not isinstance(item, dict):
        raise invalid(param, f"{param} must be an object, not {type(item).__name__}")
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item, param)
        case "function_call":
            _add_tool_call(messages, item, param)
        case "function_call_output":
            content = _content(item, "output", param)
            call_id = _text(item, "call_id", param)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        case kind:
            raise unsupported(
                param,
                f"{param} has the type {short(kind)}; served are messages, function calls and their outputs",
            )


def _add_message(messages: list[dict[str, Any]], item: dict[str, Any], param: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise invalid(f"{param}.role", f"{param}.role must be one of {_ROLES}, not {short(role)}")
    content = _content(item, "content", param)
    if role == "assistant" and messages and messages[-1].get("tool_calls"):
        messages[-1]["content"] = (messages[-1]["content"] or "") + content
    else:
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _add_tool_call(messages: list[dict[str, Any]], item: dict[str, Any], param: str) -> None:
    function = {"name": _text(item, "name", param), "arguments": _text(item, "arguments", param)}
    call = {"id": _text(item, "call_id", param), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(item: dict[str, Any], name: str, param: str) -> str:
    content = read_content(item.get(name), f"{param}.{name}", _TEXT_PARTS)
    if content is None:
        raise missing(f"{param}.{name}")
    return content


def _text(item: dict[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if value is None:
        raise missing(f"{param}.{name}")
    if not isinstance(value, str):
        raise invalid(f"{param}.{name}", f"{param}.{name} must be a string, not {type(value).__name__}")
    return value


def read_functions(tools: Any, choice: Any) -> list[dict[str, Any]] | None:
    """The functions the model may call; with `tool_choice="none"` it is not told of any."""
    if isinstance(tools, list):
        tools = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    return read_tools(tools, choice)


def _function(tool: Any, param: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise unsupported(param, f"{param} has the type {short(kind)}; only functions are supported")
    told = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in told if tool.get(name) is not None}}


def read_text_format(body: dict[str, Any]) -> None:
    """Raise Refusal unless `text` asks for plain text."""
    text_options = body.get("text")
    if text_options is None:
        return
    if not isinstance(text_options, dict):
        raise invalid("text", f"text must be an object, not {type(text_options).__name__}")
    for name, neutral in (("format", {"type": "text"}), ("verbosity", "medium")):
        if text_options.get(name) not in (None, neutral):
            raise unsupported(
                f"text.{name}",
                f"text.{name} = {short(text_options[name])} is not supported by this engine; leave it out",
            )
