"""Bodies of the four dialects, valid but for odd texts and numbers in some places."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from random import Random
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from tests.fuzz.junk import deep, raw, text, value

_WORDS: Final = (
    "List the boats",
    "with speed above 3",
    "and why",
    "Schema: boats(id, name)",
    "Say it",
    "Hello",
)
_TEMPLATE_NAMES: Final = (
    *(
        name
        for name in inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
        if name != "self"
    ),
    *("enable_thinking", "thinking", "messages", "bos_token", "eos_token", "raise_exception", "strftime_now"),
    *("documents", "loop", "range", "system_message", "custom", "namespace"),
)
_TEMPLATES: Final = (
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 300000000 }}",
    "{{ 1 // 0 }}",
    "{{ messages.x.y.z }}",
    "{{ ''.__class__.__mro__ }}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{% endfor %}",
    "{{ [1, 2] | join(9 ** 9 ** 5 | string) }}",
)
ARGUMENTS: Final = (
    *('{"q": "x"}', "{}", "", "null", "[1]", "{", '"text"', '{"a": NaN}', '{"a": 1e999}', "9" * 5_000),
    *(
        '{"q": "\\ud83d"}',
        '{"\\udc00": 1}',
        '{"q": "\ud83d"}',
        "[" * 1_200,
        '{"a":' * 1_200 + "1" + "}" * 1_200,
    ),
    *("[" * 100_000, '{"q": "\\u0000"}', "{'q': 1}", '{"q": "</tool_call>"}', "-" * 99, "tru", "\ufeff{}"),
)


def chat(draw: Random) -> dict[str, Any]:
    """A chat completion."""
    body: dict[str, Any] = {"messages": _messages(draw), **_common(draw)}
    body[draw.choice(("max_tokens", "max_completion_tokens"))] = _length(draw)
    if draw.random() < 0.3:
        body["tools"] = _tools(draw)
    if draw.random() < 0.15:
        body["n"] = draw.choice((1, 2, 3, 8, 128))
    if draw.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": draw.choice((0, 1, 5, 20))}
    if draw.random() < 0.2:
        body["stop"] = _stops(draw)
    if draw.random() < 0.3:
        body["return_token_ids"] = True
    if draw.random() < 0.2:
        body["stream_options"] = draw.choice(({"include_usage": True}, {}, {"include_obfuscation": False}))
    return body


def responses(draw: Random) -> dict[str, Any]:
    """A response."""
    items: list[Any] = []
    for _ in range(draw.randrange(1, 4)):
        items += [
            {"type": "message", "role": draw.choice(("user", "system", "developer")), "content": _words(draw)}
        ]
        if draw.random() < 0.3:
            call = f"c{draw.randrange(5)}"
            made = {
                "type": "function_call",
                "call_id": call,
                "name": _name(draw),
                "arguments": _arguments(draw),
            }
            items += [made, {"type": "function_call_output", "call_id": call, "output": _words(draw)}]
    body = {"input": items if draw.random() < 0.8 else _words(draw), **_common(draw)}
    body["max_output_tokens"] = _length(draw)
    if draw.random() < 0.3:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in _tools(draw)]
    if draw.random() < 0.15:
        body["previous_response_id"] = f"resp_{call_id(draw)}"
    if draw.random() < 0.2:
        body |= {
            "instructions": _words(draw),
            "store": draw.random() < 0.5,
            "metadata": {"a": text(draw)[:50]},
        }
    return body


def completions(draw: Random) -> dict[str, Any]:
    """A completion of a raw prompt."""
    prompts: list[Callable[[], Any]] = [
        lambda: _words(draw),
        lambda: [
            draw.randrange(820) for _ in range(draw.choice((1, 15, 16, 17, 100, 2_030, 2_040, 2_047, 2_048)))
        ],
        lambda: [[draw.randrange(820)] * draw.randrange(1, 40)],
        lambda: [draw.choice((-1, 819, 820, 2**31, 2**63, 2**64, 10**400, True, 1.0)) for _ in range(3)],
    ]
    body = {"prompt": draw.choice(prompts)(), **_common(draw), "max_tokens": _length(draw)}
    body.pop("chat_template_kwargs", None)
    if draw.random() < 0.2:
        body |= {"logprobs": draw.choice((0, 1, 5)), "return_token_ids": True}
    if draw.random() < 0.2:
        body["stop"] = _stops(draw)
    if draw.random() < 0.1:
        body["n"] = draw.choice((2, 8, 128))
    return body


def anthropic(draw: Random) -> dict[str, Any]:
    """A message."""
    turns: list[Any] = []
    for _ in range(draw.randrange(0, 3)):
        turns.append({"role": "user", "content": _words(draw)})
        blocks: list[Any] = [{"type": "text", "text": _words(draw)}]
        if draw.random() < 0.5:
            given = value(draw) if draw.random() < 0.3 else {"q": text(draw)[:300]}
            blocks.append({"type": "tool_use", "id": "t1", "name": _name(draw), "input": given})
            turns.append({"role": "assistant", "content": blocks})
            turns.append(
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t1", "content": _words(draw)}],
                }
            )
        else:
            turns.append({"role": "assistant", "content": blocks})
    turns.append({"role": "user", "content": _words(draw)})
    body = {"messages": turns, "max_tokens": _length(draw) or 8, **_common(draw, hottest=1.0)}
    body.pop("seed", None)
    if draw.random() < 0.3:
        tools = [tool["function"] for tool in _tools(draw)]
        body["tools"] = [{"name": tool["name"], "input_schema": tool.get("parameters", {})} for tool in tools]
    if draw.random() < 0.2:
        body["stop_sequences"] = _stops(draw)
    if draw.random() < 0.2:
        body["system"] = draw.choice((_words(draw), [{"type": "text", "text": _words(draw)}]))
    return body


def _common(draw: Random, hottest: float = 2.0) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if draw.random() < 0.5:
        body["stream"] = draw.random() < 0.6
    if draw.random() < 0.4:
        tiny = 10 ** draw.uniform(-60, 0)
        body["temperature"] = draw.choice((0, 0.0, 0.7, 1, hottest, tiny, tiny))
    if draw.random() < 0.3:
        body["top_p"] = draw.choice((1, 0.9, 0.1, 10 ** draw.uniform(-60, 0)))
    if draw.random() < 0.2 and hottest > 1:
        body["seed"] = draw.choice((0, 1, -1, 2**31, 2**63 - 1))
    if draw.random() < 0.3:
        body["model"] = draw.choice(("tiny", "tiny@0", "tiny@1", "gpt-4o", "", text(draw)[:500]))
    if draw.random() < 0.15:
        body["chat_template_kwargs"] = _template(draw)
    if "seed" in body and hottest > 1 and draw.random() < 0.5:
        del body["seed"]
    return body


def _template(draw: Random) -> dict[str, Any]:
    name = draw.choice(_TEMPLATE_NAMES)
    if "template" in name and draw.random() < 0.6:
        return {name: draw.choice(_TEMPLATES)}
    if draw.random() < 0.1:
        name = text(draw)[:300]
    return {name: draw.choice((True, False, None, value(draw)))}


def _length(draw: Random) -> Any:
    return None if draw.random() < 0.005 else draw.choice((1, 2, 3, 5, 8, 12, 16))


def _words(draw: Random) -> str:
    if draw.random() < 0.1:
        return text(draw)
    return " ".join(draw.choice(_WORDS) for _ in range(draw.randrange(1, 6)))


def _name(draw: Random) -> str:
    return draw.choice(("search", "run_sql", "a", text(draw)[:80]))


def _arguments(draw: Random) -> Any:
    return draw.choice(ARGUMENTS) if draw.random() < 0.8 else draw.choice((deep(draw), text(draw)))


def _messages(draw: Random) -> list[Any]:
    messages: list[Any] = []
    if draw.random() < 0.4:
        messages.append({"role": draw.choice(("system", "developer")), "content": _words(draw)})
    for _ in range(draw.randrange(1, 4)):
        content: Any = _words(draw)
        if draw.random() < 0.15:
            content = [{"type": "text", "text": content}, {"type": "text", "text": _words(draw)}]
        messages.append({"role": "user", "content": content})
        if draw.random() < 0.3:
            function = {"name": _name(draw), "arguments": _arguments(draw)}
            calls = [{"id": "c1", "type": "function", "function": function}]
            messages.append(
                {"role": "assistant", "content": draw.choice((None, "", _words(draw))), "tool_calls": calls}
            )
            messages.append({"role": "tool", "tool_call_id": "c1", "content": _words(draw)})
    return messages


def _tools(draw: Random) -> list[Any]:
    schemas = (
        {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:1/none"},
        {"type": "object", "properties": {"\ud83d": {"enum": [None, 1, "a"]}}},
        {"allOf": [{"not": {}}], "patternProperties": {"(a+)+$": True}},
        value(draw),
        raw(deep(draw)),
    )
    made = []
    for _ in range(draw.choice((1, 1, 2, 40))):
        function = {"name": _name(draw), "description": text(draw)[:200], "parameters": draw.choice(schemas)}
        made.append({"type": "function", "function": function})
    return made


def _stops(draw: Random) -> Any:
    odd = (
        "\n",
        " ",
        "e",
        "<",
        "<tool_call>",
        "<|im_end|>",
        "\0",
        "\ud83d",
        "😀",
        "a" * 5_000,
        "",
        "the",
        "\ufffd",
    )
    return draw.choice((draw.choice(odd), [draw.choice(odd) for _ in range(draw.choice((1, 4, 300)))]))


def call_id(draw: Random) -> str:
    """One of few, so that calls meet; some are those of bystanders."""
    return draw.choice(("c1", "c2", "c3", "c4", "c5", "calm-0-1", "calm-1-2", "x" * 300))
