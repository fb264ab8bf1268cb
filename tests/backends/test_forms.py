"""Every form of calls: found by its template, read whole and in pieces, and written by force as it is read.

The cases are situations of vLLM's public tests of its parsers, in our own words.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import jsonschema
import numpy as np
import pytest

from lightning_core.backends.serving.arguments import typed
from lightning_core.backends.serving.channels import Channels
from lightning_core.backends.serving.constraints import Grammars, Matcher
from lightning_core.backends.serving.forms import (
    DEEPSEEK,
    DEEPSEEK_V31,
    FORMS,
    GLM,
    GLM47,
    GRANITE,
    HERMES,
    JSON,
    KIMI,
    LFM2,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    OPENAI,
    PYTHONIC,
    QWEN,
    SEED,
    Form,
    find_form,
)
from lightning_core.backends.serving.replies import Parts
from lightning_core.backends.serving.tool_calls import ToolCalls, schemas_of
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import TrainingError, UnsupportedError
from tests.backends.models import make_tokenizer
from tests.backends.serving import user

TEMPLATES: dict[Form, str] = {
    OPENAI: "{{ tools }}<|start|>assistant<|channel|>final<|message|>",
    KIMI: "{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>",
    DEEPSEEK: "{{ tools }}<｜tool▁calls▁begin｜>\n```json\n",
    DEEPSEEK_V31: "{{ tools }}<｜tool▁calls▁begin｜><｜tool▁sep｜>",
    GRANITE: "{{ tools }}<|tool_call|>",
    SEED: "{{ tools }}<seed:tool_call>\n<function=f>",
    QWEN: "{{ tools }}<tool_call>\n<function=f>\n<parameter=p>",
    GLM: "{{ tools }}<tool_call>{function-name}\n<arg_key>",
    GLM47: "{{ tools }}<tool_call>{function-name}<arg_key>",
    LFM2: "{{ tools }}<|tool_list_start|>",
    HERMES: "{{ tools }}<tool_call>",
    MISTRAL_ARGS: "{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]",
    MISTRAL: "{{ tools }}[TOOL_CALLS] [",
    PYTHONIC: "{{ tools }}[func_name1(params_name1=params_value1)]",
    LLAMA3: "{{ tools }}{{ '\"parameters\": ' }}",
    JSON: '{{ tools }}{{ name }}, "arguments": {{ values }}',
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {
                "type": "object",
                "$defs": {"Unit": {"type": "string", "enum": ["km", "mile"]}},
                "properties": {
                    "query": {"type": "string"},
                    "limit": {"type": "integer", "minimum": 0, "maximum": 9},
                    "exact": {"type": "boolean"},
                    "unit": {"$ref": "#/$defs/Unit"},
                    "near": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
                },
                "required": ["query", "limit"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
ARGUMENTS = {"query": "a;} é", "limit": 3, "exact": True, "unit": "km", "near": None, "tags": ["a", "b"]}
AS_JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
AS_PYTHON = 'query="a;} é", limit=3, exact=True, unit="km", near=null, tags=["a", "b"]'
OBJECTS = f'{{"name": "search", "arguments": {AS_JSON}}}, {{"name": "now", "arguments": {{}}}}'
SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def kimi(name: str, number: int, arguments: str) -> str:
    head = f"<|tool_call_begin|>functions.{name}:{number}"
    return f"{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def deepseek(name: str, arguments: str) -> str:
    call = f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
    return f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>"


def deepseek_v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def tagged(pattern: str) -> str:
    """The arguments one by one."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in ARGUMENTS.items()}
    return "".join(pattern.format(k, v) for k, v in texts.items())


QWEN_CALL = (
    "<tool_call>\n<function=search>\n"
    + tagged("<parameter={}>\n{}\n</parameter>\n")
    + "</function>\n</tool_call>"
)
SEED_CALL = (
    "<seed:tool_call>\n<function=search>\n"
    + tagged("<parameter={}>{}</parameter>\n")
    + "</function>\n</seed:tool_call>"
)
GLM_CALL = (
    "<tool_call>search\n" + tagged("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n") + "</tool_call>"
)
WRITTEN = {
    KIMI: SECTION[0] + kimi("search", 0, AS_JSON) + kimi("now", 1, "{}") + SECTION[1],
    DEEPSEEK: CALLS[0] + deepseek("search", AS_JSON) + "\n" + deepseek("now", "{}") + CALLS[1],
    DEEPSEEK_V31: CALLS[0] + deepseek_v31("search", AS_JSON) + deepseek_v31("now", "{}") + CALLS[1],
    GRANITE: f"<|tool_call|>[{OBJECTS}]",
    SEED: f"{SEED_CALL}\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    QWEN: f"{QWEN_CALL}\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    GLM: f"{GLM_CALL}\n<tool_call>now\n</tool_call>",
    GLM47: GLM_CALL.replace(">\n", ">").replace("search\n", "search") + "<tool_call>now</tool_call>",
    LFM2: f"<|tool_call_start|>[search({AS_PYTHON}), now()]<|tool_call_end|>",
    PYTHONIC: f"[search({AS_PYTHON}), now()]",
    HERMES: f'<tool_call>\n{{"name": "search", "arguments": {AS_JSON}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    MISTRAL: f"[TOOL_CALLS] [{OBJECTS}]",
    MISTRAL_ARGS: f"[TOOL_CALLS]search[ARGS]{AS_JSON}[TOOL_CALLS]now[ARGS]{{}}",
    LLAMA3: f'{{"name": "search", "parameters": {AS_JSON}}}; {{"name": "now", "parameters": {{}}}}',
    JSON: f'{{"name": "search", "arguments": {AS_JSON}}}; {{"name": "now", "arguments": {{}}}}',
}
"""Two calls as the templates of a form write them. In harmony a reply is one call."""
BOTH = [("search", ARGUMENTS), ("now", {})]


def ids(form: Form) -> str:
    return f"{form.name}-{len(form.first)}{form.key}"


def read(form: Form, text: str, size: int = 1000, tools: Any = TOOLS) -> tuple[str, list[tuple[str, Any]]]:
    """(content, calls) of a text that comes in pieces."""
    known = schemas_of(tools)
    parts = Channels(known) if form is OPENAI else Parts(tools=ToolCalls(form, known))
    content, calls = "", []
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for _, said, found in [*map(parts.feed, pieces), parts.flush()]:
        content += said
        calls += [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]
    return content, calls


def forced(
    form: Form, tools: list[dict[str, Any]] = TOOLS, *, parallel: bool = True
) -> tuple[Grammars, str, Any]:
    """The grammar of calls for a tokenizer that has a form's tags as tokens."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[form]
    pieces = (*form.first, *form.before, *form.lead, *form.middle, *form.after, *form.last)
    tags = sorted({tag for tag in pieces if tag[-1] in ">]" and len(tag) > 1})
    tokenizer.add_tokens(tags, special_tokens=True)
    made = Grammars(tokenizer, len(tokenizer))
    names = tuple(tool["function"]["name"] for tool in tools)
    constraint = Constraint(tools=names, parallel=parallel)
    grammar = made.write(ChatRequest(user("hi"), tools=tools, constraint=constraint))
    assert grammar is not None
    return made, grammar, tokenizer


def act(**value: Any) -> list[dict[str, Any]]:
    """A tool with one argument `a`, and its definitions."""
    definitions = value.pop("definitions", {})
    schema = {"type": "object", "properties": {"a": value}, "required": ["a"], "$defs": definitions}
    return [{"type": "function", "function": {"name": "act", "parameters": schema}}]


@pytest.mark.parametrize("form", [JSON, QWEN, GLM, PYTHONIC], ids=ids)
@pytest.mark.parametrize(
    "schema",
    [
        *({name: 5} for name in ("allOf", "anyOf", "oneOf", "enum", "properties", "required", "$ref")),
        {"required": [{}]},
        {"anyOf": [{"format": {}}]},
    ],
    ids=str,
)
def test_parameters_of_wrong_types_are_refused_by_name(form: Form, schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="no reply can be held to a schema"):
        forced(form, act(**schema))


@pytest.mark.parametrize("form", [QWEN, PYTHONIC], ids=ids)
def test_alternatives_that_lead_to_one_another_are_each_read_once(form: Form) -> None:
    """Each of 300 definitions names the next one twice, and the last the first."""
    union = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % 300}"}] * 2} for i in range(300)}
    union["d299"]["anyOf"] += [{"enum": ["yes", "no"]}, {"type": "integer"}]  # type: ignore[list-item]
    parameters = act(definitions=union, **{"$ref": "#/$defs/d0"})[0]["function"]["parameters"]
    assert typed("act", {"a": "yes"}, {"act": parameters}) == {"a": "yes"}
    with suppress(UnsupportedError):  # the library itself may say no
        forced(form, act(definitions=union, **{"$ref": "#/$defs/d0"}))


def test_a_short_chain_of_alternatives_is_written_as_its_texts() -> None:
    union = {"d0": {"anyOf": [{"$ref": "#/$defs/d1"}, {"enum": ["no"]}]}, "d1": {"enum": ["yes"]}}
    _, grammar, _ = forced(QWEN, act(definitions=union, **{"$ref": "#/$defs/d0"}))
    assert '("yes" | "no")' in grammar


@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_a_form_is_found_by_its_template(form: Form) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[form]
    assert find_form(tokenizer) is form


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("form", WRITTEN, ids=ids)
def test_calls_are_read_with_the_types_of_their_schemas_however_the_text_is_cut(
    form: Form, size: int
) -> None:
    assert read(form, WRITTEN[form], size) == ("", BOTH)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("form", [form for form in WRITTEN if form.opening], ids=ids)
def test_text_before_calls_is_content(form: Form, size: int) -> None:
    assert read(form, f"Let me look.\n{WRITTEN[form]}", size) == ("Let me look.", BOTH)


@pytest.mark.parametrize("form", [form for form in WRITTEN if form.closing], ids=ids)
def test_text_after_calls_is_content(form: Form) -> None:
    assert read(form, f"{WRITTEN[form]}\nThen wait.", 2) == ("Then wait.", BOTH)


@pytest.mark.parametrize("form", WRITTEN, ids=ids)
def test_the_grammar_of_forced_calls_takes_what_the_template_writes_and_nothing_else(form: Form) -> None:
    made, grammar, tokenizer = forced(form)
    made.replay(grammar, [*tokenizer.encode(WRITTEN[form]), tokenizer.eos_token_id], "here")
    for wrong in (f"I {WRITTEN[form]}", WRITTEN[form].replace("search", "seek", 1)):
        with pytest.raises(TrainingError, match="does not follow its grammar"):
            made.replay(grammar, tokenizer.encode(wrong), "here")


def sample(made: Grammars, grammar: str, tokenizer: Any, seed: int, closing: str) -> str:
    """A reply that follows a grammar: tokens at random, often those that end a text."""
    matcher: Matcher = made.start(grammar)
    draw, ids, mask = random.Random(seed), [], np.zeros(made.words, np.uint32)
    texts = [tokenizer.decode([i]) for i in range(made.vocabulary)]
    wanted: list[int] = []
    while len(ids) < 1000:
        matcher.fill(mask)
        allowed = [i for i in range(made.vocabulary) if mask[i // 32] >> np.uint32(i % 32) & np.uint32(1)]
        ends = [i for i in allowed if texts[i] in ('"', "}", "]") or i == tokenizer.eos_token_id]
        if not wanted and draw.random() < 0.2:
            wanted = tokenizer.encode(closing)
        chosen = draw.choice(ends if ends and draw.random() < 0.6 else allowed)
        token = wanted.pop(0) if wanted and wanted[0] in allowed else chosen
        if token == tokenizer.eos_token_id:
            return str(tokenizer.decode(ids))
        ids.append(token)
        matcher.take(token)
    raise AssertionError(f"no end in {tokenizer.decode(ids)!r}")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_what_a_grammar_lets_through_is_read_as_calls_that_match_their_schemas(form: Form, seed: int) -> None:
    made, grammar, tokenizer = forced(form, parallel=False)
    closing = form.tags.after if form.tags is not None else ""
    content, calls = read(form, sample(made, grammar, tokenizer, seed, closing))
    assert content == ""
    [(name, arguments)] = calls
    schema = schemas_of(TOOLS)[name] or {"maxProperties": 0}
    jsonschema.validate(arguments, schema)


SPEAK: dict[str, tuple[Form, str, str, list[tuple[str, Any]]]] = {
    "a function without the tag around it": (
        QWEN,
        "<function=search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>",
        "",
        [("search", {"query": "x"})],
    ),
    "a value of several lines, and one that only looks like a number": (
        QWEN,
        "<tool_call>\n<function=search>\n<parameter=query>\n12\n\n\n</parameter>\n</function>\n</tool_call>",
        "",
        [("search", {"query": "12\n\n"})],
    ),
    "a parameter that is not closed": (
        QWEN,
        "<tool_call><function=search><parameter=limit>2<parameter=query>y</function></tool_call>",
        "",
        [("search", {"limit": 2, "query": "y"})],
    ),
    "values in Python's words, and one of no known type": (
        QWEN,
        "<tool_call><function=search><parameter=exact>False</parameter><parameter=near>None</parameter>"
        "<parameter=tags>['a']</parameter><parameter=other>1</parameter></function></tool_call>",
        "",
        [("search", {"exact": False, "near": None, "tags": ["a"], "other": "1"})],
    ),
    "a value that its schema does not allow": (
        QWEN,
        "<tool_call><function=search><parameter=limit>many</parameter></function></tool_call>",
        "",
        [("search", {"limit": "many"})],
    ),
    "two functions in one tag": (
        QWEN,
        "<tool_call><function=now></function><function=now></function></tool_call>",
        "",
        [("now", {}), ("now", {})],
    ),
    "no function in the tag": (QWEN, "<tool_call>a > b</tool_call>", "<tool_call>a > b</tool_call>", []),
    "blank space between the tags": (
        GLM,
        "<tool_call>search\n    <arg_key>query</arg_key>\n    <arg_value>Köln</arg_value>\n    </tool_call>",
        "",
        [("search", {"query": "Köln"})],
    ),
    "an argument without its value": (
        GLM47,
        "<tool_call>search<arg_key>query</tool_call>",
        "<tool_call>search<arg_key>query</tool_call>",
        [],
    ),
    "a name without the word before it, and blank space around the id": (
        KIMI,
        "<|tool_call_begin|>now:12 <|tool_call_argument_begin|> <|tool_call_end|>",
        "",
        [("now", {})],
    ),
    "an id without a number": (
        KIMI,
        "<|tool_call_begin|>functions.now.0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_call_begin|>functions.now.0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        [],
    ),
    "a broken object": (
        DEEPSEEK,
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{"a": \n```<｜tool▁call▁end｜>',
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{"a": \n```<｜tool▁call▁end｜>',
        [],
    ),
    "Granite 3.1's tag, and arguments before the name": (
        GRANITE,
        '<tool_call> [{"arguments": {}, "name": "now"}]',
        "",
        [("now", {})],
    ),
    "quotes, line ends, zeros and reserved words": (
        LFM2,
        "<|tool_call_start|> [f(command='sed -n '3,4p' f\nls', month=07, from={'a', 'b'}, x='it\\'s')]"
        "<|tool_call_end|>",
        "",
        [("f", {"command": "sed -n '3,4p' f\nls", "month": 7, "from": ["a", "b"], "x": "it's"})],
    ),
    "a dotted name and JSON's form within the tags": (
        LFM2,
        '<|tool_call_start|>[a.b-c(x=-1.5)]<|tool_call_end|><|tool_call_start|>[{"name": "now", '
        '"arguments": {}}]<|tool_call_end|>',
        "",
        [("a.b-c", {"x": -1.5}), ("now", {})],
    ),
    "an empty list": (
        LFM2,
        "<|tool_call_start|>[]<|tool_call_end|>",
        "<|tool_call_start|>[]<|tool_call_end|>",
        [],
    ),
    "Llama 4's tags": (PYTHONIC, "<|python_start|>[now()]<|python_end|>", "", [("now", {})]),
    "a list that is no call": (PYTHONIC, "[1, 2]", "[1, 2]", []),
    "bytes and positions": (PYTHONIC, "[f(x=b'z'), now(1)]", "[f(x=b'z'), now(1)]", []),
    "a call's own id": (
        MISTRAL_ARGS,
        "[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}",
        "",
        [("now", {})],
    ),
}


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("case", SPEAK)
def test_models_write_calls_in_their_own_ways(case: str, size: int) -> None:
    form, text, content, calls = SPEAK[case]
    assert read(form, text, size) == (content, calls)


def test_a_model_that_gives_its_calls_ids_finds_them_in_its_history() -> None:
    [call] = ToolCalls(KIMI).feed(kimi("now", 3, "{}"))[1]
    assert call["id"] == "functions.now:3"


TO_SEARCH = "<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
HARMONY = {
    "thought and answer": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>a < b",
        ("Hm.", "a < b", []),
    ),
    "thought and call": (
        f'<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{TO_SEARCH}{{"query": "x"}}<|call|>',
        ("Hm.", "", [("search", {"query": "x"})]),
    ),
    "the function before the channel": (
        " to=functions.now<|channel|>commentary json<|message|>",
        ("", "", [("now", {})]),
    ),
    "words to the user before a call": (
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{TO_SEARCH}{{}}<|call|>",
        ("", "I look.", [("search", {})]),
    ),
    "two thoughts": (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>",
        ("A\nB", "", []),
    ),
    "a call that is cut": (f'{TO_SEARCH}{{"query": ', ("", f'{TO_SEARCH}{{"query": ', [])),
    "a header that is cut": ("<|channel|>anal", ("", "", [])),
    "no header": ('{"a": 1}', ("", '{"a": 1}', [])),
    "a held answer": ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", ("", "{}", [])),
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("case", HARMONY)
def test_harmonys_channels_are_thoughts_content_and_calls(case: str, size: int) -> None:
    text, wanted = HARMONY[case]
    channels, thought, content, calls = Channels(schemas_of(TOOLS)), "", "", []
    for thinks, says, found in [
        *(channels.feed(text[at : at + size]) for at in range(0, len(text), size)),
        channels.flush(),
    ]:
        thought, content = thought + thinks, content + says
        calls += [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]
    assert (thought, content, calls) == wanted


def test_a_held_answer_of_harmony_stands_in_its_final_channel() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[OPENAI]
    tokenizer.add_tokens(["<|channel|>", "<|message|>"], special_tokens=True)
    made = Grammars(tokenizer, len(tokenizer))
    grammar = made.write(ChatRequest(user("hi"), constraint=Constraint(choice=("yes", "no"))))
    assert grammar is not None
    ids = tokenizer.encode("<|channel|>final<|message|>yes", add_special_tokens=False)
    made.replay(grammar, [*ids, tokenizer.eos_token_id], "here")
    with pytest.raises(TrainingError, match="does not follow its grammar"):
        made.replay(grammar, tokenizer.encode("yes"), "here")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "^x"}}}, "'pattern' of a text"),
        ({"properties": {"a": {"type": "string", "format": "email"}}}, "'format' of a text"),
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "'anyOf' in its parameters"),
        ({"properties": {}, "required": ["a"]}, "no property 'a'"),
    ],
)
def test_what_arguments_one_by_one_can_not_show_is_refused_by_name(parameters: Any, said: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[QWEN]
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    request = ChatRequest(user("hi"), tools=[tool], constraint=Constraint(tools=("f",)))
    with pytest.raises(UnsupportedError, match=f"call of 'f' in the form 'qwen3_xml'.*{said}"):
        Grammars(tokenizer, len(tokenizer)).write(request)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "format": "date"}, "2026-11-28", "tomorrow"),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "abc", "abcd"),
        ({"anyOf": [{"enum": ["x"]}, {"type": "integer"}]}, "12", "y"),
        ({"type": ["string", "null"]}, "any\ntext", None),
    ],
)
def test_text_between_tags_is_held_to_its_schema(schema: Any, good: str, bad: str | None) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[QWEN]
    made = Grammars(tokenizer, len(tokenizer))
    parameters = {"properties": {"a": schema}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    request = ChatRequest(user("hi"), tools=[tool], constraint=Constraint(tools=("f",)))
    grammar = made.write(request)
    assert grammar is not None
    for value in filter(None, (good, bad)):
        call = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
        ids = [*tokenizer.encode(call), tokenizer.eos_token_id]
        if value is good:
            made.replay(grammar, ids, "here")
        else:
            with pytest.raises(TrainingError, match="does not follow its grammar"):
                made.replay(grammar, ids, "here")
