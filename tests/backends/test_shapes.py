"""Conversations that a family's template refuses or drops are rendered in a shape that it takes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lightning_core.backends.serving.prompts import Prompts
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import UnsupportedError
from tests.backends.models import make_tokenizer

ALTERNATES = """{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}{% endif -%}"""
GEMMA = (
    "{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}"
    "{%- for m in messages -%}"
    + ALTERNATES
    + """[{{ 'model' if m.role == 'assistant' else m.role }}] {{ m.content | trim }}
{% endfor %}{% if add_generation_prompt %}[model] {% endif %}"""
)
MISTRAL = (
    """{%- if messages[0].role == 'system' %}[S] {{ messages[0].content }}
{% set messages = messages[1:] %}{% endif -%}
{%- for m in messages -%}{%- if m.role == 'system' %}{{ raise_exception('no such role') }}{% endif -%}"""
    + ALTERNATES
    + """[{{ m.role }}] {{ m.content }}
{% endfor %}"""
)
DROPS = """{%- if messages[0].role == 'system' %}[S] {{ messages[0].content }}
{% endif -%}
{%- for m in messages if m.role != 'system' -%}
[{{ m.role }}] {{ m.content }}
{% endfor %}"""
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def said(*pairs: str) -> list[dict[str, Any]]:
    roles = {"s": "system", "u": "user", "a": "assistant", "d": "developer"}
    return [{"role": roles[pair[0]], "content": pair[2:]} for pair in pairs]


def rendered(template: str, messages: list[dict[str, Any]]) -> str:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    ids = Prompts(tokenizer, "m", 1000).begin(ChatRequest(messages), 1000)
    assert isinstance(ids, list)
    return str(tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (GEMMA, said("s:be", "u:hi"), "[user] be\n\nhi\n[model] "),
        (GEMMA, said("u:one", "u:two"), "[user] one\n\ntwo\n[model] "),
        (GEMMA, said("u:one", "a:so", "s:be", "u:two"), "[user] one\n[model] so\n[user] be\n\ntwo\n[model] "),
        (MISTRAL, said("s:be", "u:one", "u:two"), "[S] be\n[user] one\n\ntwo\n"),
        (MISTRAL, said("s:be", "s:kind", "u:one"), "[S] be\n\nkind\n[user] one\n"),
        (MISTRAL, said("s:be", "u:one", "s:kind"), "[S] be\n[user] one\n\nkind\n"),
        (MISTRAL, said("u:one", "a:a", "a:b", "u:two"), "[user] one\n[assistant] a\n\nb\n[user] two\n"),
        (DROPS, said("s:be", "u:one", "s:kind", "a:so"), "[S] be\n[user] one\n\nkind\n[assistant] so\n"),
        (DROPS, said("u:one", "d:kind"), "[user] one\n\nkind\n"),
        (DROPS, said("s:be", "u:one", "u:two"), "[S] be\n[user] one\n[user] two\n"),
        (PLAIN, said("u:one", "s:kind", "u:two"), "[user] one\n[system] kind\n[user] two\n"),
    ],
)
def test_a_conversation_has_a_shape_that_its_template_takes(
    template: str, messages: list[dict[str, Any]], text: str
) -> None:
    assert rendered(template, messages) == text


def test_a_shape_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = GEMMA
    prompts = Prompts(tokenizer, "gemma", 1000)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            prompts.begin(ChatRequest(said("u:one", "u:two")), 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "the chat template of 'gemma' says roles must alternate: such conversations are rendered with "
        "messages of one role in a row joined"
    ]


def test_what_no_shape_makes_acceptable_is_refused_with_the_templates_own_words() -> None:
    with pytest.raises(UnsupportedError, match="refuses these messages: roles must alternate"):
        rendered(GEMMA, said("a:I begin", "u:one"))


def test_a_conversation_that_goes_on_begins_with_the_same_tokens() -> None:
    first = said("s:be", "u:one", "s:kind")
    more = [*first, *said("a:so", "u:two")]
    for template in (GEMMA, MISTRAL, DROPS):
        begun = rendered(template, first).removesuffix("[model] ")
        assert rendered(template, more).startswith(begun)


def test_a_continued_conversation_ends_with_the_assistants_own_words() -> None:
    tokenizer = make_tokenizer()
    messages = said("u:where", "a:It is in")
    ids = Prompts(tokenizer, "m", 1000).begin(ChatRequest(messages, continues=True), 1000)
    assert isinstance(ids, list)
    assert str(tokenizer.decode(ids)).endswith("<|im_start|>assistant\nIt is in")
