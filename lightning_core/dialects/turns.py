"""A conversation in Anthropic's form, of turns that are made of blocks, as messages of a chat.

Texts and tool uses of one assistant turn are one message, as the engine wrote it; tool results, which
Anthropic puts into the user's turn, are messages of their own. A conversation that ends with the assistant
asks for its words to be continued.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any, Final

from lightning_core.dialects.lenient import Json
from lightning_core.dialects.strict import invalid, mapping, missing, read_content, short, string, unsupported

_TEXT_PARTS: Final = MappingProxyType({"text": "text"})


def read_system(value: Any) -> list[Json]:
    """The system prompt, as a message if there is one."""
    content = read_content(value, "system", _TEXT_PARTS)
    return [{"role": "system", "content": content}] if content else []


def read_turns(value: Any) -> list[Json]:
    """The conversation."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "messages must be a list with at least one message")
    messages = []
    for index, turn in enumerate(value):
        messages += _turn(turn, f"messages[{index}]")
    return messages


def _turn(turn: Any, param: str) -> list[Json]:
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


def _assistant(blocks: list[Any], param: str) -> Json:
    texts, calls, thoughts = [], [], []
    for index, block in enumerate(blocks):
        if kind_of(block) == "tool_use":
            calls.append(_tool_call(block, f"{param}[{index}]"))
        elif kind_of(block) == "thinking":
            thoughts.append(string(block, "thinking", f"{param}[{index}]"))
        elif kind_of(block) == "redacted_thinking":
            continue  # encrypted: no text for a model
        else:
            texts.append(_text(block, f"{param}[{index}]"))
    content = "".join(texts)
    message: Json = {"role": "assistant", "content": content or None if calls else content}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _user(blocks: list[Any], param: str) -> list[Json]:
    messages: list[Json] = []
    for index, block in enumerate(blocks):
        if kind_of(block) == "tool_result":
            messages.append(_tool_result(block, f"{param}[{index}]"))
            continue
        text = _text(block, f"{param}[{index}]")
        if messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += "\n" + text
        else:
            messages.append({"role": "user", "content": text})
    return messages or [{"role": "user", "content": ""}]


def kind_of(block: Any) -> Any:
    """The type of a block; None of what is no block."""
    return block.get("type") if isinstance(block, dict) else None


def _text(block: Any, param: str) -> str:
    if kind_of(block) == "document":
        return _document(block, param)
    if kind_of(block) == "search_result":
        return _titled(block, read_content(block.get("content"), f"{param}.content", _TEXT_PARTS))
    if kind_of(block) != "text":
        raise unsupported(
            param, f"{param} has the type {short(kind_of(block))}; this model reads text and tools only"
        )
    return string(block, "text", param)


def _document(block: Json, param: str) -> str:
    """A document of plain text, with its title and what is said about it."""
    source = mapping(block, "source") or {}
    match source.get("type"):
        case "text":
            content: str | None = string(source, "data", f"{param}.source")
        case "content":
            content = read_content(source.get("content"), f"{param}.source.content", _TEXT_PARTS)
        case kind:
            raise unsupported(
                f"{param}.source",
                f"{param}.source has the type {short(kind)}; this model reads text only; send the "
                "document as text",
            )
    return _titled(block, content)


def _titled(block: Json, content: str | None) -> str:
    said = [block.get(name) for name in ("title", "source", "context")]
    return "\n".join([each for each in said if isinstance(each, str)] + [content or ""])


def _tool_result_content(value: Any, param: str) -> str | None:
    if not isinstance(value, list):
        return read_content(value, param, _TEXT_PARTS)
    return "\n".join(_text(part, f"{param}[{index}]") for index, part in enumerate(value))


def _tool_call(block: Json, param: str) -> Json:
    given = block.get("input")
    if not isinstance(given, dict):
        raise invalid(f"{param}.input", f"{param}.input must be an object, not {type(given).__name__}")
    function = {"name": string(block, "name", param), "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": string(block, "id", param), "type": "function", "function": function}


def _tool_result(block: Json, param: str) -> Json:
    content = _tool_result_content(block.get("content"), f"{param}.content")
    return {"role": "tool", "tool_call_id": string(block, "tool_use_id", param), "content": content or ""}
