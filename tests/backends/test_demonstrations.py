"""A demonstration's tokens are those that the engine would have recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.calc.app import SYSTEM
from examples.calc.tasks import generate_split
from examples.sql.prompts import write_prompt
from lightning_core.backends.local import LocalBackend
from lightning_core.errors import ContextLengthError, UnsupportedError
from lightning_core.records.types import Demonstration
from recipes.calc.corpus import TOOLS
from tests.backends.serving import ask, serving

CALC = Path(__file__).parents[2] / "examples/calc/policy"


def canonical(backend: LocalBackend, ids: list[int]) -> bool:
    """Whether the tokenizer would have cut the reply's text as the policy did."""
    tokenizer = backend._started.policy.model.tokenizer.backend_tokenizer
    text = tokenizer.decode(ids, skip_special_tokens=False)
    return bool(tokenizer.encode(text, add_special_tokens=False).ids == ids)


async def test_a_recorded_text_is_encoded_as_it_was_recorded() -> None:
    schema = "CREATE TABLE boats (id INTEGER, name TEXT, speed REAL);"
    compared = 0
    async with serving(Path("tiny")) as backend:
        for speed in range(10, 22):
            messages = write_prompt(schema, f"How many boats have speed above {speed}?")
            messages = [dict(message) for message in messages]
            reply = await ask(backend, messages, temperature=0.7, seed=speed)
            if reply.finish_reason != "stop" or not canonical(backend, reply.ids):
                continue
            row = Demonstration(messages=messages, reply=reply.text)
            assert backend.encode(row) == (reply.prompt_ids, reply.ids)
            compared += 1
    assert compared >= 5


async def test_a_recorded_tool_call_is_encoded_as_it_was_recorded() -> None:
    compared = 0
    async with serving(CALC) as backend:
        for number, problem in enumerate(generate_split("test")[:12]):
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.text}]
            reply = await ask(backend, messages, tools=TOOLS, temperature=0.5, seed=number, max_tokens=64)
            if reply.finish_reason != "tool_calls" or not canonical(backend, reply.ids):
                continue
            said = {"content": reply.text or None, "tool_calls": reply.tool_calls}
            row = Demonstration(messages=messages, reply=said, tools=TOOLS)
            assert backend.encode(row) == (reply.prompt_ids, reply.ids)
            compared += 1
    assert compared >= 3


async def test_template_arguments_change_the_prompt(qwen: Path) -> None:
    async with serving(qwen) as backend:
        row = Demonstration(messages=[{"role": "user", "content": "fox"}], reply="dog")
        prompt, reply = backend.encode(row)
        assert prompt == (await ask(backend, "fox", max_tokens=1)).prompt_ids
        assert backend._started.policy.model.tokenizer.decode(reply) == "dog<|im_end|>"


@pytest.mark.parametrize(
    ("changes", "words", "error"),
    [
        ({"reply": "a<|im_end|>b"}, "stop token", UnsupportedError),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "narrator", UnsupportedError),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image", UnsupportedError),
        ({"reply": "fox " * 600}, "context length is 512 tokens.* together", ContextLengthError),
    ],
)
async def test_what_the_template_or_the_context_can_not_hold_is_refused(
    qwen: Path, changes, words, error
) -> None:
    fields = {"messages": [{"role": "user", "content": "fox"}], "reply": "dog", **changes}
    async with serving(qwen) as backend:
        with pytest.raises(error, match=words):
            backend.encode(Demonstration(**fields))
