"""The messages and tools of an Anthropic request, as those of a chat.

Texts and tool uses of one assistant turn are one message, as the engine wrote it; tool results, which
Anthropic puts into the user's turn, are messages of their own.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.fields import short
from lightning_core.gateway.messages import read_content
from lightning_core.gateway.refusals import invalid, missing, unsupported

_TEXT_PARTS: Final = MappingProxyType({"text": "text"})


def read_system(value: Any) -> list[dict[str, Any]]:
    """The system prompt, as a message if there is one."""
    content = read_content(value, "system", _TEXT_PARTS)
    return [{"role": "system", "content": content}] if content else []


def read_turns(value: Any) -> list[dict[str, Any]]:
    """The conversation."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "messages must be a list with at least one message")
    messages = []
    for index, turn in enumerate(value):
        messages += _turn(turn, f"messages[{index}]")
    if messages[-1]["role"] == "assistant":
        raise unsupported(
            f"messages[{len(value) - 1}]",
            f"messages[{len(value) - 1}] asks to continue the assistant's own words, which is not supported; "
            "end with a user's message",
        )
    return messages


def _turn(turn: Any, param: str) -> list[dict[str, Any]]:
    if not isinstance(turn, dict):
        raise invalid(param, f"{param} must be an object, not {type(turn).__name__}")
    role, content = turn.get("role"), turn.get("content")
    if role not in ("assistant", "system", "user"):
        raise invalid(
            f"{param}.role", f"{param}.role must be 'user', 'assistant' or 'system', not {short(role)}"
        )
    if content is None:
        raise missing(f"{param}.content")
    if role == "assistant" and isinstance(content, list):
        return [_assistant(content, f"{param}.content")]
    if role == "user" and isinstance(content, list):
        return _user(content, f"{param}.content")
    return [{"role": role, "content": read_content(content, f"{param}.content", _TEXT_PARTS)}]


def _assistant(blocks: list[Any], param: str) -> dict[str, Any]:
    texts, calls = [], []
    for index, block in enumerate(blocks):
        if _kind(block) == "tool_use":
            calls.append(_tool_call(block, f"{param}[{index}]"))
        else:
            texts.append(_text(block, f"{param}[{index}]"))
    content = "".join(texts)
    if calls:
        return {"role": "assistant", "content": content or None, "tool_calls": calls}
    return {"role": "assistant", "content": content}


def _user(blocks: list[Any], param: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        if _kind(block) == "tool_result":
            messages.append(_tool_result(block, f"{param}[{index}]"))
            continue
        text = _text(block, f"{param}[{index}]")
        if messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += "\n" + text
        else:
            messages.append({"role": "user", "content": text})
    return messages or [{"role": "user", "content": ""}]


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _text(block: Any, param: str) -> str:
    if _kind(block) != "text":
        raise unsupported(
            param, f"{param} has the type {short(_kind(block))}; this model reads text and tools only"
        )
    return _string(block, "text", param)


def _tool_call(block: dict[str, Any], param: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise invalid(f"{param}.input", f"{param}.input must be an object, not {type(given).__name__}")
    function = {"name": _string(block, "name", param), "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": _string(block, "id", param), "type": "function", "function": function}


def _tool_result(block: dict[str, Any], param: str) -> dict[str, Any]:
    content = read_content(block.get("content"), f"{param}.content", _TEXT_PARTS)
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", param), "content": content or ""}


def _string(block: dict[str, Any], name: str, param: str) -> str:
    value = block.get(name)
    if value is None:
        raise missing(f"{param}.{name}")
    if not isinstance(value, str):
        raise invalid(f"{param}.{name}", f"{param}.{name} must be a string, not {type(value).__name__}")
    return value


def told_tools(tools: Any) -> Any:
    """The tools as the chat template tells of them."""
    if not isinstance(tools, list):
        return tools
    return [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _function(tool: Any, param: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(param, f"{param} must be an object, not {type(tool).__name__}")
    if tool.get("type") not in (None, "custom"):
        raise unsupported(
            param, f"{param} has the type {short(tool['type'])}; only the app's own tools are supported"
        )
    told = {"name": "name", "description": "description", "input_schema": "parameters"}
    function = {ours: tool[theirs] for theirs, ours in told.items() if tool.get(theirs) is not None}
    return {"type": "function", "function": function}


def read_tool_choice(body: dict[str, Any]) -> Any:
    """`tool_choice` as a chat has it: "auto" or "none", or what can't be forced, for it to be refused."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("auto", "none"):
        return choice["type"]
    return choice
