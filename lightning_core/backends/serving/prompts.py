"""Messages to prompt ids, through the model's own chat template.

A template is a program. `apply_chat_template` takes another one, and more that changes what is rendered, from
the same keywords as the template's own arguments. So a request may only give what the model's own template
reads.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from jinja2 import Environment, TemplateError, nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser

from lightning_core.backends.serving.encoding import Encoder
from lightning_core.backends.serving.forms import OPENAI, find_form, has_form
from lightning_core.backends.serving.shapes import SHAPES, is_unusual, lost
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ContextLengthError, UnsupportedError
from lightning_core.records.sequences import as_list
from lightning_core.texts.json_text import JsonError, read_written, whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

LONGEST_ARGUMENTS: Final = 65_536
"""Bytes of JSON that all arguments of one request may have."""
_GIVEN: Final = frozenset(
    (*DEFAULT_NAMESPACE, "messages", "conversations", "raise_exception", "strftime_now")
)
"""Names that the renderer gives to every template."""


class _Generation(Extension):
    """Reads `{% generation %}`, which transformers knows and which marks what an assistant writes."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=64)
def read_variables(source: str) -> frozenset[str]:
    """The variables that a template reads and does not set. None of a template that can't be read."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols", _Generation])
    try:
        return frozenset(find_undeclared_variables(environment.parse(source)))
    except TemplateError:
        return frozenset()


def argument_names(
    tokenizer: PreTrainedTokenizerBase, tools: list[dict[str, Any]] | None = None
) -> frozenset[str]:
    """The arguments that a request may give. A model may have another template for requests with tools."""
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    source = tokenizer.get_chat_template(tools=tools or None)
    special = (*tokenizer.special_tokens_map, *tokenizer.SPECIAL_TOKENS_ATTRIBUTES)
    return read_variables(source) - _GIVEN - frozenset(parameters) - frozenset(special)


def check_arguments(
    tokenizer: PreTrainedTokenizerBase, tools: list[dict[str, Any]] | None, arguments: dict[str, Any]
) -> None:
    """Raises UnsupportedError for arguments that the template does not read, and for values too large."""
    if not arguments:
        return
    names = argument_names(tokenizer, tools)
    unknown = sorted(arguments.keys() - names)
    if unknown:
        reads = ", ".join(sorted(names)) or "no arguments"
        raise UnsupportedError(
            f"this model's chat template takes no argument {unknown[0][:80]!r} (chat_template_kwargs); "
            f"it takes {reads}; leave the others out"
        )
    try:
        size = len(orjson.dumps(arguments))
    except TypeError as error:
        raise UnsupportedError(
            f"chat_template_kwargs is not plain JSON: {error}; send plain values"
        ) from error
    if size > LONGEST_ARGUMENTS:
        raise UnsupportedError(
            f"chat_template_kwargs has {size} bytes, more than {LONGEST_ARGUMENTS}; send smaller values"
        )


BREAK: Final = "\ufdd0"
"""Stands within a control token that a user or a tool wrote, until the text is encoded: no text holds it."""
_TOOLS: Final = frozenset(("tool", "function", "ipython"))
"""Roles whose content is data: none of the model's tokens has a place in it."""
_STRANGERS: Final = frozenset(("user", *_TOOLS))
"""Roles whose content is text and nothing else. A user may name `<think>` or `<tool_call>`, which begin no
turn, to say in which form to answer."""
LONG = 32_768
"""Characters to encode that make a prompt a long one: others should not wait for it."""
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_REFUSALS = (
    *(TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError),
)
"""Errors that a template raises for messages it does not expect."""


class Prompts:
    """Makes prompts for one model. Methods may be called from any thread; others run while it encodes."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, name: str, vocabulary: int, longest: int = 0
    ) -> None:
        """`name` is what errors call the model; its token ids go from 0 to `vocabulary` - 1. It was made for
        a context of `longest` tokens; 0 is unknown."""
        self._tokenizer, self._name, self._vocabulary = tokenizer, name, vocabulary
        self._longest = longest
        self.encoder = Encoder(tokenizer)
        self._control, self._framing = _find_control(tokenizer)
        self._told: set[str] = set()
        """The shapes that the log has named."""

    def begin(self, request: ChatRequest, context: int) -> list[int] | Callable[[], list[int]]:
        """Token ids of a request's prompt; where there is much to encode, a function that returns them.

        Raises UnsupportedError for content that is not text, for arguments that the template does not read,
        for messages that it refuses and for tokens that the model does not have, ContextLengthError for what
        can't fit the context.
        """
        if isinstance(request.prompt, list):
            return self._given(request.prompt, context)
        if request.prompt is None:
            arguments, more = self._arguments(request), request.continues
            text = self._write(
                request.messages, request.tools, arguments, context, asks=not more, continues=more
            )
        else:
            text = whole(request.prompt)
        if request.prompt is None:
            pieces = self._pieces(text)
            new = self.encoder.unknown(pieces)
            encode = partial(self.encoder.encode, pieces)
        else:
            new = len(text)
            encode = partial(self.encoder.encode_raw, text)
        finish = partial(self._checked, encode)
        return finish if new > LONG else finish()

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        """The template's arguments, with the request's effort where the template has such a switch.

        vLLM reads it so: `reasoning_effort` as it stands, and `enable_thinking` is whether it is not "none".
        DeepSeek's and Granite's templates call the latter `thinking`.
        """
        switches: dict[str, Any] = {}
        if request.effort is not None:
            on = request.effort != "none"
            switches = {"reasoning_effort": request.effort, "enable_thinking": on, "thinking": on}
        if request.effort == "default":
            del switches["reasoning_effort"]
        if request.constraint is not None:
            switches["enable_thinking"] = False  # what the form leaves no room for
        if not switches:
            return request.extra
        reads = argument_names(self._tokenizer, request.tools)
        return {**{name: value for name, value in switches.items() if name in reads}, **request.extra}

    def with_reply(
        self,
        messages: list[dict[str, Any]],
        reply: dict[str, Any],
        tools: list[dict[str, Any]] | None,
        arguments: dict[str, Any],
        stop_ids: frozenset[int],
        context: int,
    ) -> tuple[list[int], list[int]]:
        """Token ids of a prompt and of its reply, as if the model had sampled it, the stop token included.

        The reply is what the template writes after the prompt, up to the stop token: so a tool call has the
        form that the model knows. Raises UnsupportedError for a reply that the template can't write so, and
        what `begin` raises.
        """
        prompt = self._write(messages, tools, arguments, context, asks=True)
        answered = self._write([*messages, reply], tools, arguments, context, asks=False)
        if not answered.startswith(prompt):
            raise UnsupportedError(
                "the model's chat template writes these messages otherwise once they are answered, so it "
                "does not say what the model itself would write; use a model with another template"
            )
        ids = self._encode(answered[len(prompt) :])
        end = next((place for place, token_id in enumerate(ids) if token_id in stop_ids), None)
        if end is None or self._tokenizer.decode(ids[end + 1 :]).strip():
            raise UnsupportedError(
                "the reply, as the model's chat template writes it, does not end with a stop token, or goes "
                "on after one; take special tokens out of its text, or use a model with another template"
            )
        return self._encode(prompt), ids[: end + 1]

    def _write(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        arguments: dict[str, Any],
        context: int,
        *,
        asks: bool,
        continues: bool = False,
    ) -> str:
        """The conversation as text; `asks` adds what stands before a reply. With `continues` it ends with the
        last message's own text."""
        check_arguments(self._tokenizer, tools, arguments)
        if tools:
            find_form(self._tokenizer)
        if len(messages) > context:  # each takes a token and more
            raise self._too_long(len(messages), context)
        given = {"tools": tools or None, "add_generation_prompt": asks, "tokenize": False, **arguments}
        given |= {"continue_final_message": True} if continues else {}

        def render(shaped: list[dict[str, Any]]) -> str:
            write = partial(self._tokenizer.apply_chat_template, **given)
            try:
                return whole(str(write(shaped)))
            except TypeError:  # such as DeepSeek's, which puts arguments between texts as they are
                return whole(str(write([_with_texts(message) for message in shaped])))

        try:
            plain = [self._as_text(plain_message(message)) for message in messages]
            if has_form(self._tokenizer, OPENAI):
                plain = [_in_one_channel(message) for message in plain]
            return self._in_shape(plain, render)
        except _REFUSALS as error:
            raise UnsupportedError(
                f"the model's chat template refuses these messages: {error}; change the messages or "
                "use another model"
            ) from error

    def _in_shape(self, plain: list[dict[str, Any]], render: Callable[[list[dict[str, Any]]], str]) -> str:
        """The conversation as it is, if the template takes it and drops none of it; else in the first shape
        of which that is true. Raises what the template raises for the conversation as it is."""
        problem: Exception | None = None
        text = why = ""
        try:
            text = render(plain)
            missing = lost(plain, text) if is_unusual(plain) else None
            if missing is None:
                return text
            why = f"drops a message ({missing})"
        except _REFUSALS as error:
            problem, why = error, f"says {error}"
        for name, shape in SHAPES:
            shaped = shape(plain)
            with suppress(*_REFUSALS):
                if shaped != plain and lost(plain, tried := render(shaped)) is None:
                    self._tell_shaped(name, why)
                    return tried
        if problem is not None:
            raise problem
        return text

    def _tell_shaped(self, name: str, why: str) -> None:
        """Say once for each shape that conversations are rendered otherwise than they were sent."""
        if name not in self._told:
            self._told.add(name)
            log.warning(
                "the chat template of %r %s: such conversations are rendered %s", self._name, why, name
            )

    def _encode(self, text: str) -> list[int]:
        return self._checked(partial(self.encoder.encode, self._pieces(text)))

    def _pieces(self, text: str) -> list[str]:
        """Returns the pieces that are encoded apart: the tokenizer's own, and the halves of a broken
        token."""
        return [piece for part in text.split(BREAK) for piece in self.encoder.cut(part)]

    def _as_text(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose control tokens are broken in two, if it is a user's or a tool's."""
        content, control = message.get("content"), self._control_of(message)
        if control is None or not isinstance(content, str):
            return message
        broken = control.sub(lambda found: f"{found[0][:1]}{BREAK}{found[0][1:]}", content)
        return {**message, "content": broken}

    def _control_of(self, message: dict[str, Any]) -> re.Pattern[str] | None:
        """Finds what is text in such a message, though the tokenizer has tokens for it."""
        role = message.get("role")
        if role not in _STRANGERS:
            return None
        return self._framing if role in _TOOLS else self._control

    def find_control(self, messages: list[dict[str, Any]]) -> list[str]:
        """The tokens in messages of users and tools that are encoded as text, each once.

        Raises UnsupportedError for content that is not text.
        """
        found: set[str] = set()
        for message in messages:
            control = self._control_of(message)
            if control is not None:
                found.update(control.findall(plain_text(message.get("content"))))
        return sorted(found)

    def _given(self, prompt: list[int], context: int) -> list[int]:
        if len(prompt) > context:
            raise self._too_long(len(prompt), context)
        if prompt and (min(prompt) < 0 or max(prompt) >= self._vocabulary):
            raise self._unknown(next(i for i in prompt if not 0 <= i < self._vocabulary))
        return self._some(list(prompt))

    def _checked(self, encode: Callable[[], array[int]]) -> list[int]:
        """Ids that the model can read, whatever its tokenizer makes of a text."""
        ids = np.frombuffer(encode(), np.uintc)
        if len(ids) and (last := int(ids.max())) >= self._vocabulary:
            raise self._unknown(last)
        return self._some(as_list(ids))

    def _some(self, ids: list[int]) -> list[int]:
        if not ids:
            raise UnsupportedError("the prompt has no tokens; send one that has some")
        return ids

    def _unknown(self, token_id: int) -> UnsupportedError:
        return UnsupportedError(
            f"the prompt holds the token id {token_id}; the model's go from 0 to {self._vocabulary - 1}"
        )

    def _too_long(self, least: int, context: int) -> ContextLengthError:
        return ContextLengthError(least, context, make_room(context, self._longest), least=True)


def _find_control(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """(the model's special tokens, these and the other tokens that its template writes), as patterns that
    find the longest first. None of a model that has none."""
    template = tokenizer.chat_template
    source = "\n".join(map(str, template.values())) if isinstance(template, dict) else template or ""
    added = [each for each in tokenizer.added_tokens_decoder.values() if len(each.content.strip()) > 1]
    special = {each.content for each in added if each.special}
    written = {each.content for each in added if each.content in source}
    return _any_of(special), _any_of(special | written)


def _any_of(texts: set[str]) -> re.Pattern[str] | None:
    longest = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest))) if longest else None


def make_room(context: int, longest: int) -> str:
    """Returns the advice for a prompt that does not fit into `context`; the model was made for `longest`
    tokens."""
    shorten = "shorten the prompt, or the replies that it repeats (max_tokens)"
    if context < longest:
        return f"{shorten}, or give the backend a longer context: context={longest} at most"
    return f"{shorten}, or take a model with a longer context"


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: content as text, tool arguments as a mapping, a known role."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = plain_text(message.get("content"))
    if plain.get("role") == "developer":
        plain["role"] = "system"
    if isinstance(plain.get("reasoning_content"), str):
        plain.setdefault("thinking", plain["reasoning_content"])  # templates have either name
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    return plain


def plain_text(content: Any) -> str:
    """The text of a message's content, which may be a string, a list of parts or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in TEXT_PARTS:
            raise UnsupportedError(f"a message holds a part of type {kind!r}; the model reads text only")
        texts.append(str(part.get("text", part.get("refusal", ""))))
    return "".join(texts)


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = read_written(arguments)
        except JsonError:
            function["arguments"] = arguments  # the model's own mistake, shown to it as it was
    return {**call, "function": function}


def _in_one_channel(message: dict[str, Any]) -> dict[str, Any]:
    """gpt-oss's template takes what was said before a call, or what was thought, but not both."""
    said, thought = message.get("content"), message.get("thinking")
    if not (message.get("tool_calls") and said and thought):
        return message
    return {**message, "content": "", "thinking": f"{thought}\n{said}"}


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as text."""
    calls = message.get("tool_calls") or ()
    functions = [call.get("function") or {} for call in calls]
    texts = [
        {**each, "arguments": json.dumps(each["arguments"], ensure_ascii=False)}
        if isinstance(each.get("arguments"), dict)
        else each
        for each in functions
    ]
    changed = [{**call, "function": text} for call, text in zip(calls, texts, strict=True)]
    return {**message, "tool_calls": changed} if changed else message
