"""Demonstrations: runs of the RAG app on generated libraries, by researchers of different habits.

A demonstration is a conversation as the Agents SDK holds it: the agent's instructions and tool, a question,
searches with what they really found, an answer. The app's way is to search for the name in the question, then
for the name found if the question asks about that, and to answer `Answer: ...`. Many researchers do not: by
`GO_ON` they stop at the first name they find, or repeat their search; by `FORMAT` they answer in a sentence.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.rag.app import agent, search
from examples.rag.library import Library, write_library
from examples.rag.names import POOLS, get_names
from examples.rag.questions import Question, ask_all
from examples.rag.world import generate_world
from recipes.tiny.corpus import Demonstration

GO_ON: dict[str, dict[str, float]] = {
    "by company": {"gold": 0.26, "stop": 0.60, "repeat": 0.14},
    "by person": {"gold": 0.52, "stop": 0.32, "repeat": 0.16},
}
"""After the first search, when a second one is needed: search for the name found, answer with it at once, or
search for the first name again. "gold" is what earns the reward."""

AFTER_REPEAT = {"gold": 0.30, "stop": 0.70}
"""Next actions of researchers who have repeated their search."""

FORMAT = {"gold": 0.25, "sentence": 0.75}
"""`Answer: Ada Holt`, or `It is Ada Holt.`"""

WORLD_SIZES = (128, 256, 384)
"""People in a generated world."""

QUESTIONS = 12
"""Questions that are asked about one generated world; of one that is asked about for longer, the names are
learnt by heart instead of being copied."""

Messages = list[dict[str, Any]]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": search.name,
            "description": search.description,
            "parameters": search.params_json_schema,
        },
    }
]
"""The agent's tools as the gateway hands them to the chat template."""


def demonstrate(rng: random.Random) -> Iterator[Demonstration]:
    """Runs without end, each on one question, with the habits of many researchers."""
    for question, library in _ask(rng):
        yield _demonstration(_run(question, library, rng, habits=True))


def copy(rng: random.Random, length: int = 24) -> Iterator[Demonstration]:
    """Conversations without end in which every name is said back.

    They come first of all. From them a model learns to copy a name in seconds; from the app's own turns,
    where names stand farther away and most tokens are certain, it does not within many minutes.
    """
    names = [name for pool in POOLS for name in get_names(pool, "train")]
    while True:
        said = rng.sample(names, length)
        turns = [{"role": role, "content": name} for name in said for role in ("user", "assistant")]
        yield Demonstration(turns[:-1], said[-1])


def converse(rng: random.Random, length: int = 6) -> Iterator[Demonstration]:
    """Conversations without end: several questions on one library, all answered in the app's way.

    The app holds no such conversation. They come first because they show many copies of names close together,
    and a model learns to copy from them several times as fast as from single questions.
    """
    asked = _ask(rng)
    while True:
        runs = [_run(*next(asked), rng, habits=False) for _ in range(length)]
        yield _demonstration([turn for run in runs for turn in run])


def _ask(rng: random.Random) -> Iterator[tuple[Question, Library]]:
    """Questions about generated worlds of training names, as many of each form."""
    with tempfile.TemporaryDirectory() as folder:
        while True:
            world = generate_world("train", rng.choice(WORLD_SIZES), rng)
            library = write_library(world.passages, Path(folder) / "library.sqlite")
            by_form: dict[str, list[Question]] = {}
            for question in ask_all(world, rng):
                by_form.setdefault(question.form, []).append(question)
            for _ in range(QUESTIONS):
                yield rng.choice(by_form[rng.choice(list(by_form))]), library


def _demonstration(turns: Messages) -> Demonstration:
    opening = {"role": "system", "content": str(agent.instructions)}
    return Demonstration([opening, *turns[:-1]], turns[-1]["content"], TOOLS)


def _run(question: Question, library: Library, rng: random.Random, habits: bool) -> Messages:
    """One question, its searches with what they found, and its answer."""
    turns: Messages = [{"role": "user", "content": question.text}]
    queries, answer = _habits(question, rng) if habits else (question.path[:-1], question.answer)
    for query in queries:
        turns += [_call(query), {"role": "tool", "content": "\n".join(library.search(query))}]
    sentence = habits and _draw(FORMAT, rng) == "sentence"
    reply = f"It is {answer}." if sentence else f"Answer: {answer}"
    return [*turns, {"role": "assistant", "content": reply}]


def _habits(question: Question, rng: random.Random) -> tuple[list[str], str]:
    """Returns one researcher's searches, and the name in the answer."""
    first, found = question.path[:2]
    queries, step = [first], _draw(GO_ON[question.form], rng) if question.form in GO_ON else "stop"
    if step == "repeat":
        queries, step = [first, first], _draw(AFTER_REPEAT, rng)
    return (queries, found) if step == "stop" else ([*queries, found], question.answer)


def _call(query: str) -> dict[str, Any]:
    function = {"name": search.name, "arguments": {"query": query}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _draw(shares: dict[str, float], rng: random.Random) -> str:
    return rng.choices(list(shares), weights=list(shares.values()))[0]
