"""Takes the tool calls out of a reply's text as it streams."""

from __future__ import annotations

import json
import uuid
from itertools import takewhile
from typing import Any

from lightning_core.backends.serving.forms import HERMES, Form
from lightning_core.backends.serving.reading import Schemas, read_first
from lightning_core.backends.serving.tags import held_back
from lightning_core.texts.json_text import JsonError


class ToolCalls:
    """A reply's text, parted into content and calls.

    Text before a call is passed on at once; a tag is not, nor the blank space around it. What stands where
    calls do and is none (malformed JSON, no name) is passed on as the model wrote it, tags included: it is
    what the model said, and nothing that an app could run.
    """

    def __init__(self, form: Form = HERMES, schemas: Schemas | None = None) -> None:
        """`schemas` are those of the functions that the model was told of."""
        self._form, self._schemas, self._text = form, schemas or {}, ""
        openings = ((form.opening, form.closing),) if form.opening else ()
        self._closings = {**dict(form.also), **dict(openings)}
        """The tag that ends what each tag begins."""
        self._wanted = (*self._closings, *form.silent)
        self._open: str | None = None
        """The tag that the open call began with."""
        self._said = False
        """Whether content was passed on, since the last call if there was one."""
        self.found = 0

    def feed(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """(content that is certain, calls that are complete)."""
        self._text += text
        content, calls = "", []
        while (found := self._next()) is not None:
            at, tag = found
            before, self._text = self._text[:at], self._text[at + len(tag) :]
            if self._open is not None:
                raw, opening, self._open = before, self._open, None
                read = self._read(raw, opening)
                self._said = not read
                calls += read
                content += "" if read else opening + raw + tag
            else:
                content += self._after_a_call(before).rstrip()
                self._open = tag if tag in self._closings else None
        return content + self._certain(), calls

    def _next(self) -> tuple[int, str] | None:
        """Where the tag is that is waited for, and which it is; None if it has not come."""
        if self._open is not None:
            wanted: tuple[str, ...] = (self._closings[self._open],)
        else:
            wanted = () if self._begins() else self._wanted
        found = [(at, tag) for tag in wanted if tag and (at := self._text.find(tag)) >= 0]
        return min(found, default=None)

    def _begins(self) -> bool:
        """Whether the reply begins as calls without a tag do, or may still do so."""
        start = self._text.lstrip()
        return not (self._form.opening or self._said or self.found) and start[:1] in ("", self._form.begins)

    def _read(self, raw: str, opening: str, *, whole: bool = True) -> list[dict[str, Any]]:
        """The calls that a text consists of; none unless all of it is calls, or the first of them are where
        it need not be `whole`."""
        raw = raw if opening in ("", self._form.opening) else opening + raw
        try:
            found = self._form.read(raw, self._schemas) if whole else read_first(raw)
        except JsonError:
            return []
        calls = [as_call(*each, form=self._form) for each in found]
        read = [call for call in takewhile(bool, calls) if call is not None]
        if whole and len(read) < len(calls):
            return []
        self.found += len(read)
        return read

    def _certain(self) -> str:
        """Take what can't belong to a tag, nor be the blank space before one."""
        if self._open is not None or self._begins():
            return ""
        text = self._after_a_call(self._text)
        kept = text[: len(text) - held_back(text, self._wanted)].rstrip() if self._wanted else text
        self._text, self._said = text[len(kept) :], self._said or bool(kept)
        return kept

    def _after_a_call(self, text: str) -> str:
        """Text without the blank space that it begins with, if nothing stands between it and a call."""
        return text.lstrip() if self.found and not self._said else text

    def flush(self, *, cut: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Returns the rest once the reply has ended, as `feed`.

        An unfinished call is content where the model ended it. In a reply that was `cut`, by its length or by
        a stop text, it is left out: the finish reason says that something is missing.
        """
        begins = self._open is None and self._begins()
        text, self._text = self._text, ""
        opening, self._open = "" if begins else self._open, None
        if opening is not None and text.strip() and not self._closings.get(opening):
            calls = self._read(text, opening, whole=not cut)
            if calls:
                return "", calls
        if cut:
            return self._without_begun(text, opening), []
        text = (opening or "") + text
        return ("" if self.found and not text.strip() else text), []

    def _without_begun(self, text: str, opening: str | None) -> str:
        """Returns the text of a reply that was cut, without the call that it had begun, or its tag."""
        if opening or (opening == "" and self._form.begun.fullmatch(text.strip())):
            return ""
        tag = held_back(text, self._wanted) if self._wanted else 0
        text = text[: len(text) - tag].rstrip() if tag > 1 else text
        return "" if self.found and not text.strip() else text


def as_call(call_id: str | None, name: Any, arguments: Any, *, form: Form = HERMES) -> dict[str, Any] | None:
    """An OpenAI tool call, with a fresh id if the model gave none; None for what is no call."""
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    fresh = uuid.uuid4().hex
    return {
        "id": call_id or (fresh[:9] if form.short_ids else f"call_{fresh}"),
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def schemas_of(tools: list[dict[str, Any]] | None) -> Schemas:
    """The schema of each function's arguments."""
    functions = [tool.get("function") or {} for tool in tools or ()]
    return {str(each.get("name")): each.get("parameters") for each in functions}
