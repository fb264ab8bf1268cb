"""Tool calls in a reply: the forms in which chat templates write them, found by the template's own text.

The names are those of vLLM's parsers, which read the same forms. They are read here, as one reader then
serves every engine, and a call that is forced by a grammar is written in the form that is read.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from lightning_core.backends.chat.tags import held_back
from lightning_core.errors import UnsupportedError
from lightning_core.json_text import JsonError, read_written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ARGS: Final = "[ARGS]"
_BEGINS: Final = '{"name":"'
"""How a call without tags begins, without its blank space."""


@dataclass(frozen=True, slots=True)
class Form:
    """How calls stand in a reply: `first`, the calls with `between` them, `last`.

    A call is `before`, what `written` gives around its arguments, `after`.
    """

    name: str
    """vLLM's for its parser."""
    first: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: str = ""
    last: tuple[str, ...] = ()
    arguments: str = "arguments"
    named: bool = False
    """The name stands before the arguments instead of within one JSON object."""

    @property
    def opening(self) -> str:
        """Calls begin with it; with "", at the beginning of a reply that is a JSON object."""
        return next(iter(self.first + self.before), "")

    @property
    def closing(self) -> str:
        """A call ends with it; with "", the calls end with the reply."""
        return self.after[-1] if self.after else ""

    def written(self, name: str) -> tuple[tuple[str, ...], str]:
        """What stands before and after the arguments of a function."""
        if self.named:
            return (name, _ARGS), ""
        return (f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.arguments}": ',), "}"


HERMES: Final = Form("hermes", before=("<tool_call>", "\n"), after=("\n", "</tool_call>"), between="\n")
LLAMA3: Final = Form("llama3_json", between="; ", arguments="parameters")
JSON: Final = Form("llama3_json", between="; ")
MISTRAL: Final = Form("mistral", first=("[TOOL_CALLS]", " ["), between=", ", last=("]",))
MISTRAL_ARGS: Final = Form("mistral", before=("[TOOL_CALLS]",), named=True)
TAGS: Final = frozenset((HERMES.opening, HERMES.closing, MISTRAL.opening, _ARGS))
"""Texts of these forms that are tokens of their own in some models."""
_UNREAD: Final = {
    "<function=": "qwen3_xml",
    "<｜tool▁calls▁begin｜>": "deepseek_v3",
    "<|tool_calls_section_begin|>": "kimi_k2",
    "<|channel|>": "openai",
    "<|tool_call|>": "granite",
    "params_name1=": "pythonic",
}


def find_form(tokenizer: PreTrainedTokenizerBase) -> Form:
    """How the model's chat template writes calls. Raises UnsupportedError for none, and for another form."""
    template = tokenizer.chat_template
    sources = template.values() if isinstance(template, dict) else [template or ""]
    text = "\n".join(map(str, sources))
    unread = next((name for mark, name in _UNREAD.items() if mark in text), None)
    if unread is not None:
        raise UnsupportedError(
            f"this model's chat template writes tool calls in the form that vLLM calls {unread!r}, which is "
            "not read here; use a model of hermes, llama3_json or mistral (docs/own-model.md)"
        )
    if not re.search(r"\btools\b", text):
        raise UnsupportedError(
            "this model's chat template knows no tools, so the model would not be told of them; leave tools "
            "out, or use a model whose template has them (docs/own-model.md)"
        )
    if HERMES.opening in text:
        return HERMES
    if MISTRAL.opening in text:
        return MISTRAL_ARGS if _ARGS in text else MISTRAL
    if '"parameters": ' in text or '"arguments"' in text:
        return LLAMA3 if '"parameters": ' in text else JSON
    raise UnsupportedError(
        "this model's chat template does not say how tools are called, so calls would not be seen; leave "
        "tools out, or use a model of hermes, llama3_json or mistral (docs/own-model.md)"
    )


class ToolCalls:
    """Takes the tool calls out of a reply's text as it streams.

    Text before a call is passed on at once; a tag is not, nor the blank space around it. What stands where
    calls do and is none (malformed JSON, no name) is passed on as the model wrote it, tags included: it is
    what the model said, and nothing that an app could run.
    """

    def __init__(self, form: Form = HERMES) -> None:
        self._form, self._text = form, ""
        self._inside = False
        self._said = False
        """Whether content was passed on, since the last call if there was one."""
        self.found = 0

    def feed(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """(content that is certain, calls that are complete)."""
        self._text += text
        if not self._form.opening:
            return self._begin(), []
        content, calls = "", []
        while (at := self._next()) >= 0:
            if self._inside:
                raw, self._text = self._text[:at], self._text[at + len(self._form.closing) :]
                call = parse_call(raw)
                self._said = call is None
                if call is None:
                    content += self._form.opening + raw + self._form.closing
                else:
                    calls.append(call)
                    self.found += 1
            else:
                content += self._after_a_call(self._text[:at]).rstrip()
                self._text = self._text[at + len(self._form.opening) :]
            self._inside = not self._inside
        return content + self._certain(), calls

    def _next(self) -> int:
        """Where the tag is that is waited for; -1 if it has not come."""
        tag = self._form.closing if self._inside else self._form.opening
        return self._text.find(tag) if tag else -1

    def _begin(self) -> str:
        """Without tags, a reply that begins as an object is kept to its end, and any other passed on."""
        start = self._text.lstrip()
        self._inside = not self._said and start.startswith("{")
        self._said = self._said or not (self._inside or not start)
        if not self._said:
            return ""
        text, self._text = self._text, ""
        return text

    def _certain(self) -> str:
        """Take what can't belong to a tag, nor be the blank space before one."""
        if self._inside:
            return ""
        text = self._after_a_call(self._text)
        kept = text[: len(text) - held_back(text, (self._form.opening,))].rstrip()
        self._text, self._said = text[len(kept) :], self._said or bool(kept)
        return kept

    def _after_a_call(self, text: str) -> str:
        """Text without the blank space that it begins with, if nothing stands between it and a call."""
        return text.lstrip() if self.found and not self._said else text

    def flush(self, *, cut: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """What is left once the reply has ended, as `feed`.

        An unfinished call is content where the model ended it. In a reply that was `cut`, by its length or by
        a stop text, it is left out: the finish reason says that something is missing.
        """
        text, self._text = self._text, ""
        inside, self._inside = self._inside, False
        if inside and not self._form.closing:
            calls = _read_whole(text, self._form) if cut else _read_all(text, self._form)
            self.found += len(calls)
            if calls:
                return "", calls
        if cut:
            return self._without_begun(text, inside), []
        text = (self._form.opening if inside else "") + text
        return ("" if self.found and not text.strip() else text), []

    def _without_begun(self, text: str, inside: bool) -> str:
        """What is left of a reply that was cut, without the call that it had begun, or its tag."""
        opening = self._form.opening
        if inside and (opening or _begins_call(text)):
            return ""
        tag = held_back(text, (opening,)) if opening else 0
        text = text[: len(text) - tag].rstrip() if tag > 1 else text
        return "" if self.found and not text.strip() else text


def parse_call(raw: str) -> dict[str, Any] | None:
    """An OpenAI tool call with a fresh id, or None if `raw` isn't one."""
    try:
        value = read_written(raw)
    except JsonError:
        return None
    if not isinstance(value, dict):
        return None
    return _call(value.get("name"), value.get("arguments", {}))


def _read_all(text: str, form: Form) -> list[dict[str, Any]]:
    """The calls that the end of a reply consists of; none unless all of it is calls."""
    try:
        found = _named(text) if _ARGS in text else _listed(text) if form.opening else _in_a_row(text.strip())
    except JsonError:
        return []
    calls = [_call(*each, short=bool(form.opening)) for each in found]
    return [call for call in calls if call is not None] if all(calls) else []


def _read_whole(text: str, form: Form) -> list[dict[str, Any]]:
    """The calls at the end of a reply that was cut, as far as they are whole."""
    if _ARGS in text:
        each = [_read_all(part, form) for part in text.split(MISTRAL.opening)]
        return [call for calls in takewhile(bool, each) for call in calls]
    found, at = [], 0
    while (start := text.find("{", at)) >= 0:
        try:
            _, at = json.JSONDecoder(strict=False).raw_decode(text, start)
            call = _call(*_pair(read_written(text[start:at])), short=bool(form.opening))
        except (ValueError, RecursionError, JsonError):
            break
        if call is None:
            break
        found.append(call)
    return found


def _begins_call(text: str) -> bool:
    """Whether a reply without tags begins as its calls do."""
    begun = "".join(text.split())
    return begun.startswith(_BEGINS) or _BEGINS.startswith(begun)


def _named(text: str) -> list[tuple[Any, Any]]:
    """name[ARGS]{...}, a call after each tag."""
    parts = [part.partition(_ARGS) for part in text.split(MISTRAL.opening)]
    return [(name.strip(), read_written(arguments)) for name, _, arguments in parts]


def _listed(text: str) -> list[tuple[Any, Any]]:
    values = read_written(text)
    return [_pair(value) for value in (values if isinstance(values, list) else [values])]


def _in_a_row(text: str) -> list[tuple[Any, Any]]:
    """Objects with ";" between them."""
    found, at, read = [], 0, json.JSONDecoder(strict=False).raw_decode
    while at < len(text):
        try:
            _, end = read(text, at)
        except (ValueError, RecursionError) as error:
            raise JsonError(str(error)) from error
        found.append(_pair(read_written(text[at:end])))
        at = end + len(text[end:]) - len(text[end:].lstrip("; \n"))
    return found


def _pair(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, dict):
        return None, None
    return value.get("name"), value.get("arguments", value.get("parameters"))


def _call(name: Any, arguments: Any, *, short: bool = False) -> dict[str, Any] | None:
    """`short`: Mistral's templates refuse ids that have other than 9 letters and digits."""
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    name_of = uuid.uuid4().hex
    return {
        "id": name_of[:9] if short else f"call_{name_of}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }
