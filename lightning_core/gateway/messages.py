"""Messages and tools as the chat template takes them: plain text, or refused by name.

Content given in parts is joined by newlines, as vLLM does for templates that expect a string; a
`developer` message is a `system` message, the name that open models were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.fields import short
from lightning_core.gateway.refusals import Refusal, invalid, unsupported

_ROLES: Final = ("assistant", "developer", "system", "tool", "user")
_TEXT_PARTS: Final = MappingProxyType({"text": "text", "refusal": "refusal"})
_NOT_CARRIED: Final = ("audio", "function_call")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The conversation, each content a string or None."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "messages must be a list with at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(message: Any, param: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(param, f"{param} must be an object, not {type(message).__name__}")
    role = message.get("role")
    if role == "function":
        raise unsupported(f"{param}.role", "the role 'function' is not supported; use the role 'tool'")
    if role not in _ROLES:
        raise invalid(f"{param}.role", f"{param}.role must be one of {_ROLES}, not {short(role)}")
    for name in _NOT_CARRIED:
        if message.get(name) is not None:
            raise unsupported(f"{param}.{name}", f"{param}.{name} is not supported; leave it out")
    content = read_content(message.get("content"), f"{param}.content", _TEXT_PARTS)
    if content is None and role != "assistant":
        raise invalid(f"{param}.content", f"{param}.content is missing")
    role = "system" if role == "developer" else role
    return {**message, "role": role, "content": content}


def read_content(value: Any, param: str, parts: Mapping[str, str]) -> str | None:
    """Content as text; `parts` gives the field that holds the text of each type of part."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(param, f"{param} must be a string or a list of parts, not {type(value).__name__}")
    return "\n".join(_part(part, f"{param}[{index}]", parts) for index, part in enumerate(value))


def _part(part: Any, param: str, parts: Mapping[str, str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in parts:
        raise unsupported(param, f"{param} has the type {short(kind)}; this model reads text only")
    text = part.get(parts[kind])
    if not isinstance(text, str):
        raise invalid(param, f"{param}.{parts[kind]} must be a string")
    return text


def read_tools(tools: Any, choice: Any) -> list[dict[str, Any]] | None:
    """The functions the model may call; with `tool_choice="none"` it is not told of any."""
    if tools is None or tools == []:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "tool_choice needs tools")
        return None
    if not isinstance(tools, list):
        raise invalid("tools", "tools must be a list")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    if choice not in (None, "none", "auto"):
        raise unsupported(
            "tool_choice",
            f"tool_choice = {short(choice)} can't be forced on this engine; use 'auto' or 'none'",
        )
    return None if choice == "none" else tools


def _check_tool(tool: Any, param: str) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise unsupported(param, f"{param} has the type {short(kind)}; only functions are supported")
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(f"{param}.function needs a name", code="missing_required_parameter", param=param)
