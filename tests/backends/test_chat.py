"""The app's view of a reply: whole characters, no tags, no stop strings, clear refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.serving.constraints import Grammars
from lightning_core.backends.serving.forms import HERMES, JSON, LLAMA3, MISTRAL, MISTRAL_ARGS, Form, find_form
from lightning_core.backends.serving.prompts import Prompts, plain_message
from lightning_core.backends.serving.replies import (
    ChatGeneration,
    ParsedChoice,
    Parts,
    StopStrings,
    TextStream,
)
from lightning_core.backends.serving.tool_calls import ToolCalls
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ContextLengthError, TrainingError, UnsupportedError
from tests.backends.models import make_byte_fallback_tokenizer, make_network, make_tokenizer
from tests.backends.serving import ask, serving, user

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Köln", "limit": 3}}\n</tool_call>'


TOKENIZER = make_tokenizer().backend_tokenizer


def read_tools(pieces: list[str], form: Form = HERMES) -> tuple[str, list[tuple[str, object]]]:
    tools, content, calls = ToolCalls(form), "", []
    for text, found in [*map(tools.feed, pieces), tools.flush()]:
        content += text
        calls += [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found]
    return content, calls


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_tool_calls_are_read_however_the_text_is_cut_and_tags_never_reach_the_content(size: int) -> None:
    text = f"Let me look.\n{CALL}\n{CALL}\n"
    content, calls = read_tools([text[i : i + size] for i in range(0, len(text), size)])
    assert content == "Let me look."
    assert calls == [("search", {"query": "Köln", "limit": 3})] * 2


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("after", ["I will wait\n\nfor it.", "<tool_call>{}</tool_call> was no call."])
def test_text_after_a_tool_call_keeps_its_spaces(size: int, after: str) -> None:
    text = f"{CALL}\n{after}"
    content, calls = read_tools([text[i : i + size] for i in range(0, len(text), size)])
    assert content == after
    assert len(calls) == 1


ARGUMENTS = '{"query": "a;}", "limit": 3}'
LLAMA_CALL = f'{{"name": "search", "parameters": {ARGUMENTS}}}'
JSON_CALL = f'{{"name": "search", "arguments": {ARGUMENTS}}}'
WRITTEN = {
    "hermes": (HERMES, f"<tool_call>\n{JSON_CALL}\n</tool_call>"),
    "llama": (LLAMA3, LLAMA_CALL),
    "llama, two": (LLAMA3, f"{LLAMA_CALL}; {LLAMA_CALL}"),
    "json": (JSON, JSON_CALL),
    "mistral": (MISTRAL, f"[TOOL_CALLS] [{JSON_CALL}]"),
    "mistral, two": (MISTRAL, f"[TOOL_CALLS] [{JSON_CALL}, {JSON_CALL}]"),
    "mistral with names": (MISTRAL_ARGS, f"[TOOL_CALLS]search[ARGS]{ARGUMENTS}"),
    "mistral with names, two": (MISTRAL_ARGS, f"[TOOL_CALLS]search[ARGS]{ARGUMENTS}" * 2),
}
"""As templates write calls, and as forced ones are written."""


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("kind", WRITTEN)
def test_tool_calls_are_read_in_each_form(kind: str, size: int) -> None:
    form, text = WRITTEN[kind]
    content, calls = read_tools([text[i : i + size] for i in range(0, len(text), size)], form)
    assert content == ""
    assert calls == [("search", json.loads(ARGUMENTS))] * (1 + ("two" in kind))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (LLAMA3, JSON_CALL),
        (JSON, f"{LLAMA_CALL};\n{LLAMA_CALL}"),
        (MISTRAL, f'[TOOL_CALLS][{JSON_CALL[:-1]}, "id": "abc123def"}}]'),
        (MISTRAL, f"[TOOL_CALLS]search[ARGS]{ARGUMENTS}"),
    ],
)
def test_neighbouring_forms_are_read_too(form: Form, text: str) -> None:
    content, calls = read_tools([text], form)
    assert content == ""
    assert set(map(repr, calls)) == {repr(("search", json.loads(ARGUMENTS)))}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_forced_call_may_be_what_the_template_writes_and_nothing_else(kind: str) -> None:
    form, text = WRITTEN[kind]
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[form]
    grammars = Grammars(tokenizer, len(tokenizer))
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query", "limit"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "search", "parameters": parameters}}
    asked = ChatRequest(user("hi"), tools=[tool], constraint=Constraint(tools=("search",)))
    grammar = grammars.write(asked)
    assert grammar is not None
    ids = tokenizer.encode(text, add_special_tokens=False)
    grammars.replay(grammar, [*ids, tokenizer.eos_token_id], "here")
    for wrong in (text[:-1] + "!", "I " + text):
        with pytest.raises(TrainingError, match="does not follow its grammar"):
            grammars.replay(grammar, tokenizer.encode(wrong, add_special_tokens=False), "here")


@pytest.mark.parametrize("form", [LLAMA3, JSON, MISTRAL, MISTRAL_ARGS, HERMES])
@pytest.mark.parametrize(
    "text",
    [
        "Plain.",
        'In text: {"name": "search", "parameters": {}}',
        '{"name": "Ann", "age": 3}',
        '{"name": "search", "parameters": {}} and more',
        '{"name": "search", "param',
        "{" * 5000,
        '{"a":' * 5000,
        "[TOOL_CALLS] [{]",
        '[TOOL_CALLS] [{"name": "search"}]',
        "[TOOL_CALLS]search[ARGS]{",
        "[TOOL_CALLS]",
    ],
)
def test_what_is_no_call_in_a_form_is_content(form: Form, text: str) -> None:
    if text.startswith("[") and form.opening != "[TOOL_CALLS]":
        pytest.skip("another form's tag")
    assert read_tools([text[i : i + 100] for i in range(0, len(text), 100)], form) == (text, [])


WHOLE = '{"name": "search", "arguments": {"query": "K"}}'


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, f"<tool_call>{WHOLE}</tool_call>\n<tool_call>{WHOLE}", "", 1),
        (JSON, f"{WHOLE}; {WHOLE[:-1]}", "", 1),
        (JSON, WHOLE[:12], "", 0),
        (JSON, '{"na', "", 0),
        (JSON, '{"age": 3, "name', '{"age": 3, "name', 0),
        (MISTRAL, f"[TOOL_CALLS] [{WHOLE}, {WHOLE}, {WHOLE[:9]}", "", 2),
        (MISTRAL, "Look. [TOOL_CALLS] [", "Look.", 0),
        (MISTRAL_ARGS, '[TOOL_CALLS]search[ARGS]{"query": "K"}[TOOL_CALLS]search[ARGS]{"que', "", 1),
        (MISTRAL_ARGS, "[TOOL_CALLS]sea", "", 0),
    ],
)
def test_of_a_reply_that_was_cut_whole_calls_are_calls_and_no_markup_is_content(
    form: Form, text: str, content: str, calls: int
) -> None:
    tools, said, found = ToolCalls(form), "", []
    for piece, some in [*map(tools.feed, text), tools.flush(cut=True)]:
        said += piece
        found += some
    assert said == content
    assert [call["function"] for call in found] == [
        {"name": "search", "arguments": '{"query": "K"}'} for _ in range(calls)
    ]


@pytest.mark.parametrize("size", [1, 4, 20])
async def test_a_forced_call_that_is_cut_says_nothing(size: int) -> None:
    completion = scripted(CALL[:size], cut=True)
    forced = Constraint(tools=("search",))
    request = ChatRequest(user("hi"), tools=[{"type": "function"}], constraint=forced)
    parts = Parts(tools=ToolCalls())
    choice = ParsedChoice(0, completion, TextStream(TOKENIZER, frozenset({2})), request, parts)
    deltas = [d async for d in ChatGeneration([5], completion.request, [choice])]
    assert [(d.text, d.tool_calls) for d in deltas] == [("", None)]
    assert deltas[-1].finish_reason == "length"


def test_ids_of_calls_are_such_as_mistrals_template_takes() -> None:
    tools = ToolCalls(MISTRAL)
    tools.feed('[TOOL_CALLS] [{"name": "search", "arguments": {}}]')
    [call] = tools.flush()[1]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


TEMPLATES: dict[Form, Any] = {
    HERMES: {"default": "{{ messages }}", "tool_use": "{{ tools }}<tool_call>"},
    LLAMA3: "{% if tools %}{% endif %}{{ '\"parameters\": ' }}",
    JSON: '{{ tools | tojson }}{{ name }}, "arguments": {{ values }}',
    MISTRAL: "{{ tools }}[TOOL_CALLS] [",
    MISTRAL_ARGS: "{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]",
}


@pytest.mark.parametrize(("form", "template"), TEMPLATES.items())
def test_the_form_of_calls_is_that_of_the_chat_template(form: Form, template: Any) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    assert find_form(tokenizer) is form


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages }}", "knows no tools"),
        ("{{ tools }}<minimax:tool_call><invoke>", "'minimax_m2', which is not read here"),
        ("{{ tools }}", "does not say how tools are called"),
    ],
)
async def test_tools_that_a_model_is_not_told_of_are_refused_by_name(
    qwen: Path, tmp_path: Path, template: str, said: str
) -> None:
    shutil.copytree(qwen, tmp_path / "model")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "model")
    tool = {"type": "function", "function": {"name": "search"}}
    async with serving(tmp_path / "model") as backend:
        for constraint in (None, Constraint(tools=("search",))):
            with pytest.raises(UnsupportedError, match=said):
                await ask(backend, "hi", tools=[tool], constraint=constraint)


def test_text_before_a_tool_call_is_passed_on_before_the_call_is_complete() -> None:
    assert ToolCalls().feed("Let me look.\n<tool_")[0] == "Let me look."


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>["search"]</tool_call>',
        '<tool_call>{"name": "search", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "search", "argu',
        "a < b and <tool",
    ],
)
def test_what_is_no_tool_call_is_content_as_the_model_wrote_it(text: str) -> None:
    assert read_tools(list(text)) == (text, [])


def test_every_tool_call_has_an_id_of_its_own() -> None:
    ids = [call["id"] for call in ToolCalls().feed(CALL * 20)[1]]
    assert len(set(ids)) == 20
    assert all(i.startswith("call_") for i in ids)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_text_comes_back_whole_and_never_with_half_a_character(text: str) -> None:
    stream = TextStream(TOKENIZER, frozenset())
    pieces = [stream.feed(i) for i in TOKENIZER.encode(text, add_special_tokens=False).ids]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


FALLBACK = make_byte_fallback_tokenizer()
TEXTS: dict[int, dict[int, str]] = {}
"""The texts of single tokens that all streams of a tokenizer share, by the tokenizer."""


@pytest.mark.parametrize("tokenizer", [FALLBACK, make_tokenizer()], ids=["byte tokens", "byte level"])
@given(data=st.data())
def test_streamed_text_is_that_of_all_ids_whatever_bytes_are_sampled(tokenizer: Any, data: Any) -> None:
    some = st.integers(3, len(tokenizer) - 1)
    euro = st.sampled_from(tokenizer("€", add_special_tokens=False)["input_ids"])
    ids = data.draw(st.lists(some | euro, max_size=24))
    known = TEXTS.setdefault(id(tokenizer), {})
    stream = TextStream(tokenizer.backend_tokenizer, frozenset(tokenizer.all_special_ids), known)
    pieces = [*map(stream.feed, ids), stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids)


async def test_a_byte_out_of_place_spoils_no_call(tmp_path: Path) -> None:
    make_network("llama", len(FALLBACK), tie_word_embeddings=True).save_pretrained(tmp_path)
    FALLBACK.save_pretrained(tmp_path)
    async with serving(tmp_path) as backend:
        replies = [await ask(backend, "hi", max_tokens=24, seed=seed) for seed in range(20)]
    assert sum("\ufffd" in reply.text for reply in replies) > 10
    for reply in replies:
        assert reply.text == FALLBACK.decode(reply.ids, skip_special_tokens=True)
        assert len(reply.ids) == len(reply.logprobs) > 0


async def test_a_stop_string_in_the_last_run_of_bytes_is_found() -> None:
    ids = FALLBACK("ab€Z", add_special_tokens=False)["input_ids"]
    completion = Completion([5], SamplingOptions(max_tokens=9), CompletionRequest())
    completion.ids, completion.logprobs = ids, [-1.0] * len(ids)
    completion.finish_reason = "length"
    request = ChatRequest(user("hi"), stop=("Z",))
    choice = ParsedChoice(0, completion, TextStream(FALLBACK.backend_tokenizer, frozenset()), request)
    delta = choice.advance()
    assert delta is not None
    assert (delta.text, delta.finish_reason, delta.stop) == ("ab€", "stop", "Z")


def test_hidden_tokens_have_no_text() -> None:
    stream = TextStream(TOKENIZER, frozenset({2}))
    ids = TOKENIZER.encode("fox").ids
    assert "".join(stream.feed(i) for i in [*ids, 2, *ids, 2]) == "foxfox"


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text: str, stops: list[str]) -> None:
    scanner, seen, used = StopStrings(tuple(stops)), "", 0
    for used, piece in enumerate(text, start=1):  # noqa: B007
        seen += scanner.feed(piece)
        if scanner.hit:
            break
    seen += scanner.flush()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    first = min(ends, default=None)
    assert (scanner.hit is not None) == (first is not None)
    if first is None:
        assert seen == text
    else:
        assert used == first
        assert text.startswith(seen)
        assert not any(stop in seen for stop in stops)


async def test_a_stop_string_ends_the_reply_and_its_tokens_stay_recorded(qwen: Path) -> None:
    async with serving(qwen) as backend:
        free = await ask(backend, "the lazy dog", max_tokens=40, seed=3)
        stop = free.text[6:9]
        reply = await ask(backend, "the lazy dog", max_tokens=40, seed=3, stop=(stop,))
        assert reply.text == free.text[: free.text.index(stop)]
        assert reply.finish_reason == "stop"
        assert reply.ids == free.ids[: len(reply.ids)]
        assert len(reply.logprobs) == len(reply.ids) < len(free.ids)


async def test_special_tokens_are_recorded_and_have_no_text(qwen: Path) -> None:
    async with serving(qwen) as backend:
        replies = [await ask(backend, f"dog {i}", seed=i) for i in range(12)]
        stopped = [reply for reply in replies if reply.finish_reason == "stop"]
        assert stopped
        assert all(reply.ids[-1] == 2 and "<|" not in reply.text for reply in stopped)


async def test_the_last_delta_of_a_reply_says_why_it_ended(qwen: Path) -> None:
    async with serving(qwen) as backend:
        reply = await ask(backend, "fox", max_tokens=30, seed=1)
        assert [d.finish_reason for d in reply.deltas[:-1]] == [None] * (len(reply.deltas) - 1)
        assert reply.deltas[-1].finish_reason == ("length" if len(reply.ids) == 30 else "stop")


async def test_a_prompt_beyond_the_context_is_refused_with_what_to_do(qwen: Path) -> None:
    told = "This model's maximum context length is"
    rest = r"tokens. However, your messages resulted in (at least )?\d+ tokens; "
    other = "take a model with a longer context"
    async with serving(qwen) as backend:
        for text in ("dog " * 600, "dog " * 6000):
            with pytest.raises(ContextLengthError, match=f"{told} 512 {rest}.* {other}"):
                await ask(backend, text)
    async with serving(qwen, context=64) as backend:
        for text in ("dog " * 100, "dog " * 6000):
            with pytest.raises(ContextLengthError, match=f"{told} 64 {rest}.* context=512 at most"):
                await ask(backend, text)
        reply = await ask(backend, "dog", seed=5)
        assert len(reply.prompt_ids) + len(reply.ids) <= 64


async def test_more_max_tokens_than_the_context_has_left_are_as_many_as_fit(qwen: Path) -> None:
    async with serving(qwen, context=40) as backend:
        replies = [await ask(backend, "dog", max_tokens=32_000, seed=i) for i in range(8)]
        assert {len(r.prompt_ids) + len(r.ids) for r in replies if r.finish_reason == "length"} == {40}
        free = [await ask(backend, "dog", seed=i) for i in range(8)]
        assert [reply.ids for reply in free] == [reply.ids for reply in replies]


async def test_a_reply_without_max_tokens_may_fill_the_context(qwen: Path) -> None:
    async with serving(qwen, context=40) as backend:
        replies = [await ask(backend, "dog", seed=i) for i in range(8)]
        assert {len(r.prompt_ids) + len(r.ids) for r in replies if r.finish_reason == "length"} == {40}


async def test_text_parts_are_joined_and_other_parts_refused_by_name(qwen: Path) -> None:
    async with serving(qwen) as backend:
        parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "fox"}]
        joined = await ask(backend, [{"role": "user", "content": parts}], max_tokens=3)
        assert joined.prompt_ids == (await ask(backend, "the fox", max_tokens=3)).prompt_ids
        with pytest.raises(UnsupportedError, match="'image_url'"):
            await ask(backend, [{"role": "user", "content": [{"type": "image_url"}]}])


def test_tool_arguments_reach_the_template_as_a_mapping() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    plain = plain_message(message)
    assert plain["content"] == ""
    assert plain["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools }}{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
        "{% endfor %}{% endfor %}",
        "{{ tools }}{% for m in messages %}{% for c in m.tool_calls %}{{ '' + c.function.arguments }}"
        "{% endfor %}{% endfor %}",
    ],
)
def test_tool_arguments_are_text_for_a_template_that_puts_them_between_texts(template: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    made = Prompts(tokenizer, "m", len(tokenizer)).begin(ChatRequest(messages), 100)
    assert isinstance(made, list)
    assert tokenizer.decode(made) == 'None{"a": 1}'


def test_what_was_thought_before_a_call_reaches_the_template_under_either_name() -> None:
    tokenizer = make_tokenizer()
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Said.", "reasoning_content": "Thought.", "tool_calls": [call]}
    written = {}
    for harmony in ("", "<|channel|><|message|>"):
        tokenizer.chat_template = harmony + "{{ messages[0].thinking }}|{{ messages[0].content }}"
        made = Prompts(tokenizer, "m", len(tokenizer)).begin(ChatRequest([message]), 100)
        assert isinstance(made, list)
        written[harmony] = tokenizer.decode(made)
    assert list(written.values()) == ["Thought.|Said.", "<|channel|><|message|>Thought.\nSaid.|"]


def test_broken_tool_arguments_reach_the_template_as_they_are() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": '}}
    plain = plain_message({"role": "assistant", "tool_calls": [call]})
    assert plain["tool_calls"][0]["function"]["arguments"] == '{"a": '


@pytest.mark.parametrize(
    ("reads", "effort", "written"),
    [
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ reasoning_effort }}", None, ""),
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking }}", "low", "True"),
        ("{{ enable_thinking }}", None, ""),
        ("plain", "low", "plain"),
    ],
)
def test_the_effort_reaches_a_template_that_has_a_switch_for_it(
    reads: str, effort: str | None, written: str
) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = reads + "{{ messages[0].content }}"
    made = Prompts(tokenizer, "m", len(tokenizer)).begin(ChatRequest(user("!"), effort=effort), 100)
    assert isinstance(made, list)
    assert tokenizer.decode(made) == written + "!"


async def test_a_message_the_template_refuses_is_named(qwen: Path) -> None:
    async with serving(qwen) as backend:
        for message in ({"role": "narrator"}, {"role": "assistant", "tool_calls": [{"function": 3}]}):
            with pytest.raises(UnsupportedError, match="chat template refuses"):
                await ask(backend, [*user("hi"), message])


async def test_a_tool_call_goes_into_history_as_the_model_would_write_it(qwen: Path) -> None:
    async with serving(qwen) as backend:
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "search", "arguments": '{"query": "Paris", "limit": 3}'},
        }
        messages = [*user("hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
        reply = await ask(backend, messages, max_tokens=1)
        text = TOKENIZER.decode(reply.prompt_ids, skip_special_tokens=False)
        wanted = '<tool_call>\n{"name": "search", "arguments": {"query": "Paris", "limit": 3}}\n</tool_call>'
        assert wanted in text


def scripted(text: str, *, cut: bool = False) -> Completion:
    """A completion as the engine leaves it behind, its ids those of `text` and a stop token."""
    completion = Completion([5], SamplingOptions(max_tokens=500), CompletionRequest())
    completion.ids = TOKENIZER.encode(text, add_special_tokens=False).ids + [2] * (not cut)
    completion.logprobs = [-1.0] * len(completion.ids)
    completion.finish_reason = "length" if cut else "stop"
    return completion


@pytest.mark.parametrize(
    ("text", "tools", "cut", "content", "calls", "reason"),
    [
        (f"Look.\n{CALL}", True, False, "Look.", 1, "tool_calls"),
        (f"{CALL}\n{CALL}", True, False, "", 2, "tool_calls"),
        (CALL, False, False, CALL, 0, "stop"),
        (CALL[:30], True, True, "", 0, "length"),
        (f"Look. {CALL[:5]}", True, True, "Look.", 0, "length"),
        (f"{CALL}\n{CALL[:30]}", True, True, "", 1, "length"),
        ("a < b <", True, True, "a < b <", 0, "length"),
        ("<tool_call>{}</tool_call>", True, False, "<tool_call>{}</tool_call>", 0, "stop"),
        ("Plain.", True, False, "Plain.", 0, "stop"),
    ],
)
async def test_a_reply_is_read_as_content_calls_and_a_reason(
    text: str, tools: bool, cut: bool, content: str, calls: int, reason: str
) -> None:
    completion = scripted(text, cut=cut)
    request = ChatRequest(user("hi"), tools=[{"type": "function"}] if tools else None)
    parts = Parts(tools=ToolCalls() if request.tools else None)
    choice = ParsedChoice(0, completion, TextStream(TOKENIZER, frozenset({2})), request, parts)
    deltas = [d async for d in ChatGeneration([5], completion.request, [choice])]
    assert "".join(d.text for d in deltas) == content
    assert sum(len(d.tool_calls or []) for d in deltas) == calls
    assert deltas[-1].finish_reason == reason
    assert [i for d in deltas for i in d.token_ids] == completion.ids


async def test_text_after_a_tool_call_comes_in_a_later_delta() -> None:
    completion = scripted(f"Look.\n{CALL}\nThen wait.")
    request = ChatRequest(user("hi"), tools=[{"type": "function"}])
    parts = Parts(tools=ToolCalls() if request.tools else None)
    choice = ParsedChoice(0, completion, TextStream(TOKENIZER, frozenset({2})), request, parts)
    deltas = [d async for d in ChatGeneration([5], completion.request, [choice])]
    said = [(d.text, len(d.tool_calls or []), d.finish_reason) for d in deltas]
    assert said == [("Look.", 1, None), ("Then wait.", 0, "tool_calls")]
    assert [i for d in deltas for i in d.token_ids] == completion.ids


async def test_a_reply_that_may_hold_one_call_ends_with_it() -> None:
    completion = scripted(f"Look.\n{CALL}\n{CALL}")
    request = ChatRequest(user("hi"), tools=[{"type": "function"}], parallel=False)
    parts = Parts(tools=ToolCalls() if request.tools else None)
    choice = ParsedChoice(0, completion, TextStream(TOKENIZER, frozenset({2})), request, parts)
    deltas = [d async for d in ChatGeneration([5], completion.request, [choice])]
    assert sum(len(d.tool_calls or []) for d in deltas) == 1
    assert deltas[-1].finish_reason == "tool_calls"
    assert completion.cancelled
    recorded = [i for d in deltas for i in d.token_ids]
    assert TOKENIZER.decode(recorded, skip_special_tokens=False) == f"Look.\n{CALL}"


async def test_a_reply_whose_end_comes_after_its_last_token_still_ends() -> None:
    completion = scripted("fox")
    completion.finish_reason = None
    choice = ParsedChoice(0, completion, TextStream(TOKENIZER, frozenset({2})), ChatRequest(user("hi")))
    first = choice.advance()
    assert first is not None
    assert first.finish_reason is None
    assert choice.advance() is None
    completion.finish_reason = "stop"
    last = choice.advance()
    assert last is not None
    assert (last.token_ids, last.finish_reason) == ([], "stop")


async def test_a_raw_prompt_is_sampled_from_as_it_stands(qwen: Path) -> None:
    async with serving(qwen) as backend:
        ids = TOKENIZER.encode("the lazy dog").ids
        text = await ask(backend, [], prompt="the lazy dog", max_tokens=5, temperature=0.0)
        tokens = await ask(backend, [], prompt=ids, max_tokens=5, temperature=0.0)
        assert text.prompt_ids == tokens.prompt_ids == ids
        assert text.ids == tokens.ids
        for unknown in (-1, 10**6):
            with pytest.raises(UnsupportedError, match=f"token id {unknown}"):
                await ask(backend, [], prompt=[unknown])


async def test_the_stop_string_that_ended_a_reply_is_told(qwen: Path) -> None:
    async with serving(qwen) as backend:
        free = await ask(backend, "the lazy dog", max_tokens=40, seed=3)
        stop = free.text[6:9]
        reply = await ask(backend, "the lazy dog", max_tokens=40, seed=3, stop=("never said", stop))
        assert [delta.stop for delta in reply.deltas if delta.finish_reason] == [stop]
        cut = await ask(backend, "the lazy dog", max_tokens=2, seed=3, stop=("never said",))
        assert cut.deltas[-1].stop is None
