"""Thoughts are taken out of a reply where the model's own template knows them, and nowhere else."""

from __future__ import annotations

import pytest

from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.serving.prompts import Prompts
from lightning_core.backends.serving.replies import ChatGeneration, ParsedChoice, Parts, TextStream
from lightning_core.backends.serving.tags import THINK, Thinking, find_thoughts
from lightning_core.backends.serving.tool_calls import ToolCalls
from lightning_core.dialects.upstream import ChatRequest, Constraint
from tests.backends.models import make_tokenizer
from tests.backends.serving import user

CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'


def parted(text: str, size: int, *, begun: bool = False) -> tuple[str, str]:
    """(thought, rest) of a text that comes in pieces."""
    thinking = Thinking(begun=begun)
    pieces = [thinking.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(thinking.flush())
    return "".join(thought for thought, _ in pieces), "".join(rest for _, rest in pieces)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "begun", "thought", "rest"),
    [
        ("<think>\nA. B\nC\n</think>\n\nSo.", False, "A. B\nC", "So."),
        ("\nA. B\n</think>\n\nSo.\n\nEnd.", True, "A. B", "So.\n\nEnd."),
        ("<think>\n\n</think>\n\nSo.", False, "", "So."),
        ("So <think>it</think> is.", False, "", "So <think>it</think> is."),
        ("<thin", False, "", "<thin"),
        (" So.", False, "", " So."),
        ("<think>cut in the midd", False, "cut in the midd", ""),
        ("<think>cut </thi", False, "cut </thi", ""),
        ("<think>a < b</think>", False, "a < b", ""),
    ],
)
def test_a_thought_is_what_stands_between_the_tags(
    text: str, begun: bool, thought: str, rest: str, size: int
) -> None:
    assert parted(text, size, begun=begun) == (thought, rest)


def test_a_model_thinks_if_its_template_knows_the_tags() -> None:
    tokenizer = make_tokenizer()
    assert find_thoughts(tokenizer) is None
    tokenizer.chat_template = "{{ messages[0].content.split('</think>')[-1] }}"
    assert find_thoughts(tokenizer) is THINK


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("template", "text", "thought", "rest"),
    [
        ("[THINK][/THINK]", "[THINK]A. B[/THINK]So.", "A. B", "So."),
        ("<seed:think></seed:think>", "<seed:think>A</seed:think>\nSo.", "A", "So."),
        (
            "<think></think><response></response>",
            "<think>A</think>\n<response> So < it.</response>",
            "A",
            "So < it.",
        ),
        (
            "after 'Here is my thought process:' write 'Here is my response:'",
            "Here is my thought process: A.\n\nHere is my response: So.",
            "A.",
            "So.",
        ),
        ("<think></think>", "<think>A</think><response>So", "A", "<response>So"),
    ],
)
def test_each_template_has_its_own_tags(template: str, text: str, thought: str, rest: str, size: int) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    thoughts = find_thoughts(tokenizer)
    assert thoughts is not None
    thinking = Thinking(thoughts, begun=False)
    pieces = [*(thinking.feed(text[at : at + size]) for at in range(0, len(text), size)), thinking.flush()]
    assert "".join(each for each, _ in pieces) == thought
    assert "".join(each for _, each in pieces) == rest


async def test_a_call_within_a_thought_is_not_made() -> None:
    tokenizer = make_tokenizer().backend_tokenizer
    text = f"<think>{CALL}?</think>Look.{CALL}"
    completion = Completion([5], SamplingOptions(max_tokens=500), CompletionRequest())
    completion.ids = tokenizer.encode(text, add_special_tokens=False).ids
    completion.logprobs = [-1.0] * len(completion.ids)
    completion.finish_reason = "stop"
    request = ChatRequest(user("hi"), tools=[{"type": "function"}])
    stream = TextStream(tokenizer, frozenset())
    choice = ParsedChoice(0, completion, stream, request, Parts(Thinking(begun=False), ToolCalls()))
    deltas = [delta async for delta in ChatGeneration([5], completion.request, [choice])]
    assert "".join(delta.thought for delta in deltas) == f"{CALL}?"
    assert "".join(delta.text for delta in deltas) == "Look."
    assert sum(len(delta.tool_calls or ()) for delta in deltas) == 1
    assert deltas[-1].finish_reason == "tool_calls"


def test_a_reply_that_is_held_to_a_form_does_not_think() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ enable_thinking }}{{ messages[0].content }}"
    prompts = Prompts(tokenizer, "m", len(tokenizer))
    made = prompts.begin(ChatRequest(user("!"), constraint=Constraint(regex="a")), 100)
    assert isinstance(made, list)
    assert tokenizer.decode(made) == "False!"
