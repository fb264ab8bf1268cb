"""A model's chat template, and the arguments that a request may give to it.

A template is a program. `apply_chat_template` takes another one, and more that changes what is rendered, from
the same keywords as the template's own arguments. So a request may only give what the model's own template
reads.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson
from jinja2 import Environment, TemplateError, nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser

from lightning_core.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST_ARGUMENTS: Final = 65_536
"""Bytes of JSON that all arguments of one request may have."""
_GIVEN: Final = frozenset(
    (*DEFAULT_NAMESPACE, "messages", "conversations", "raise_exception", "strftime_now")
)
"""What the renderer gives to every template."""


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
