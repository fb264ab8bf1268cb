"""What a call was asked and what it answered, in one form whatever its dialect.

The form is that of the GenAI conventions: messages `{"role", "parts"}`, whose parts are texts, tool calls
and their responses. Reads leniently: a request was checked when it was served, and a call that was only
seen may hold anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from lightning_core.types import Call

Part = dict[str, Any]
Message = dict[str, Any]


def prompt(call: Call) -> list[Message]:
    """The messages that the model was given."""
    return [*_instructions(call), *(_message(item) for item in _items(call))]


def replies(call: Call) -> list[Message]:
    """The messages that the model answered, one for each choice, with their `finish_reason`."""
    return [
        {**_message({"role": "assistant", **choice.message}), "finish_reason": choice.finish_reason or ""}
        for choice in call.choices
    ]


def observation(call: Call) -> str:
    """Digest of what the model was shown last: the messages after its own last one, or all if it had none.

    Equal digests are the same observation, whatever came before. The ids of tool calls, which are new in each
    rollout, are left out. "" if nothing was shown. A text completion is shown its whole prompt.
    """
    shown: list[Message] = []
    for item in reversed(_items(call)):
        message = _message(item)
        if message["role"] == "assistant" and shown:
            break
        shown.append(message)
    else:
        shown += reversed(_instructions(call))
    said = [
        [message["role"], [{**part, "id": None} for part in message["parts"]]]
        for message in reversed(shown)
        if message["parts"]
    ]
    if not said:
        return ""
    content = json.dumps(said, sort_keys=True, default=repr)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def text(messages: Iterable[Message]) -> str:
    """All that is said in the messages as one line; a tool call reads like `name(arguments)`."""
    texts = (said(part) for message in messages for part in message["parts"])
    return " ".join(" ".join(words.split()) for words in texts if words)


def tokens_read(call: Call) -> int | None:
    """Tokens of the prompt; None if the engine gave none."""
    return None if call.prompt_ids is None else len(call.prompt_ids)


def tokens_written(call: Call) -> int | None:
    """Tokens of all choices; None if the engine gave none."""
    counts = [len(choice.completion_ids) for choice in call.choices if choice.completion_ids is not None]
    return sum(counts) if counts else None


def _instructions(call: Call) -> list[Message]:
    given = (call.request.get(name) for name in ("system", "instructions"))
    return [{"role": "system", "parts": _parts(content)} for content in given if content]


def _items(call: Call) -> list[Any]:
    """What stands in the place of messages, as it was sent."""
    found: list[Any] = []
    for name in ("messages", "input", "prompt"):
        given: Any = call.request.get(name)
        found += [item for item in (given if isinstance(given, list) else [given]) if item]
    return found


def said(part: Part) -> str:
    """One part as text; a tool call reads like `name(arguments)`."""
    match part["type"]:
        case "text":
            return str(part["content"])
        case "tool_call":
            return f"{part['name']}({_as_text(part['arguments'])})"
        case "tool_call_response":
            return _as_text(part["response"])
        case other:
            return f"[{other}]"


def _message(item: Any) -> Message:
    if not isinstance(item, dict):
        return {"role": "user", "parts": [_text(item if isinstance(item, str) else json.dumps(item))]}
    match item.get("type"):
        case "function_call":
            return {"role": "assistant", "parts": [_tool_call(item.get("call_id"), item)]}
        case "function_call_output":
            return {"role": "tool", "parts": [_response(item.get("call_id"), item.get("output"))]}
    if item.get("role") == "tool":
        return {"role": "tool", "parts": [_response(item.get("tool_call_id"), item.get("content"))]}
    tool_calls = item.get("tool_calls") or []
    asked = [_asked(call) for call in (tool_calls if isinstance(tool_calls, list) else [tool_calls])]
    return {"role": str(item.get("role", "user")), "parts": _parts(item.get("content")) + asked}


def _asked(call: Any) -> Part:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return _text(call)
    return _tool_call(call.get("id"), call["function"])


def _parts(content: Any) -> list[Part]:
    if isinstance(content, list):
        return [_block(block) for block in content]
    return [_text(content)] if content else []


def _block(block: Any) -> Part:
    if not isinstance(block, dict):
        return _text(block)
    match block.get("type"):
        case "tool_use":
            return _tool_call(block.get("id"), {**block, "arguments": block.get("input")})
        case "tool_result":
            return _response(block.get("tool_use_id"), block.get("content"))
        case kind:
            return _text(block["text"]) if "text" in block else {"type": str(kind)}


def _text(content: Any) -> Part:
    return {"type": "text", "content": _as_text(content)}


def _tool_call(tool_call_id: Any, function: dict[str, Any]) -> Part:
    name, arguments = function.get("name"), function.get("arguments")
    return {"type": "tool_call", "id": tool_call_id, "name": name, "arguments": arguments}


def _response(tool_call_id: Any, response: Any) -> Part:
    return {"type": "tool_call_response", "id": tool_call_id, "response": response}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
