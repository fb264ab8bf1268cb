"""Measuring a policy in the RAG app: the same conversations, the same searches, the same turns, in batches.

The Agents SDK asks one question at a time over HTTP; here all questions take their turns together, so that a
few hundred take seconds.
"""

import json
from collections import defaultdict
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.rag.app import MAX_TURNS, agent
from examples.rag.library import Library
from examples.rag.reward import answer_reward
from lightning_core.backends.serving.tool_calls import ToolCalls
from recipes.answering import answer
from recipes.rag.corpus import TOOLS, Messages

Task = dict[str, Any]


def run_app(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], greedy: bool
) -> list[Messages]:
    """The conversation of the app on each task; one that has not ended with an answer ran out of turns."""
    system = {"role": "system", "content": str(agent.instructions)}
    runs: list[Messages] = [[system, {"role": "user", "content": task["question"]}] for task in tasks]
    running = list(zip(runs, tasks, strict=True))
    for _ in range(MAX_TURNS):
        replies = answer(model, tokenizer, [run for run, _ in running], greedy, tools=TOOLS, most=48)
        for (run, task), reply in zip(running, replies, strict=True):
            run += _take_turn(reply, Library(task["library"]))
        running = [(run, task) for run, task in running if run[-1]["role"] == "tool"]
        if not running:
            break
    return runs


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], greedy: bool
) -> dict[str, float]:
    """The mean reward by form of question, and over all tasks under "all"."""
    by_form: dict[str, list[float]] = defaultdict(list)
    for task, run in zip(tasks, run_app(model, tokenizer, tasks, greedy), strict=True):
        reply = run[-1]["content"] if run[-1]["role"] == "assistant" else ""
        for name in (task["form"], "all"):
            by_form[name].append(answer_reward(reply, task["answers"]))
    return {name: sum(rewards) / len(rewards) for name, rewards in sorted(by_form.items())}


def _take_turn(reply: str, library: Library) -> Messages:
    """The reply as a message, and after it what its searches found."""
    parser = ToolCalls()
    content, calls = parser.feed(reply)
    turns: Messages = [{"role": "assistant", "content": content + parser.flush()[0]}]
    if calls:
        functions = [call["function"] for call in calls]
        arguments = [json.loads(function["arguments"]) for function in functions]
        turns[0]["tool_calls"] = [
            {"type": "function", "function": {**function, "arguments": values}}
            for function, values in zip(functions, arguments, strict=True)
        ]
        for values in arguments:
            found = "\n".join(library.search(str(values.get("query", "")))) or "Nothing found."
            turns.append({"role": "tool", "content": found})
    return turns
