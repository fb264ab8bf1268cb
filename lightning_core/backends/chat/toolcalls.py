"""Tool calls in a reply's text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the form of Qwen and
Hermes."""

from __future__ import annotations

import json
import uuid
from typing import Any

from lightning_core.backends.chat.text import held_back
from lightning_core.json_text import JsonError, read_written

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class ToolCalls:
    """Takes the tool calls out of a reply's text as it streams.

    Text before a call is passed on at once; a tag is not, nor the blank space around it. What stands between
    the tags and is no tool call (malformed JSON, no name) is passed on as the model wrote it, tags included:
    it is what the model said, and nothing that an app could run.
    """

    def __init__(self) -> None:
        self._text = ""
        self._inside = False
        self.found = 0

    def feed(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """(content that is certain, calls that are complete)."""
        self._text += text
        content, calls = "", []
        while (at := self._text.find(CLOSE if self._inside else OPEN)) >= 0:
            if self._inside:
                raw, self._text = self._text[:at], self._text[at + len(CLOSE) :]
                call = parse_call(raw)
                if call is None:
                    content += OPEN + raw + CLOSE
                else:
                    calls.append(call)
                    self.found += 1
            else:
                content += self._text[:at].rstrip()
                self._text = self._text[at + len(OPEN) :]
            self._inside = not self._inside
        return content + self._certain(), calls

    def _certain(self) -> str:
        """Take what can't belong to a tag, nor be the blank space before one."""
        if self._inside:
            return ""
        text = self._text.lstrip() if self.found else self._text
        kept = text[: len(text) - held_back(text, (OPEN,))].rstrip()
        self._text = text[len(kept) :]
        return kept

    def flush(self) -> str:
        """What is left once the reply has ended: an unfinished call is content."""
        text, self._text = (OPEN if self._inside else "") + self._text, ""
        self._inside = False
        return "" if self.found and not text.strip() else text


def parse_call(raw: str) -> dict[str, Any] | None:
    """An OpenAI tool call with a fresh id, or None if `raw` isn't one."""
    try:
        value = read_written(raw)
    except JsonError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    function = {"name": value["name"], "arguments": text}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
