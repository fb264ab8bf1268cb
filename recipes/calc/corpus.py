"""Demonstrations: calls of the app in `examples.calc`, with the habits of many people mixed in the replies.

Where a form of problem has a familiar mistake (`examples.calc.problems`), the reply makes it as often as
`SHARES` says, and nothing in the prompt tells who is speaking: so a model of this corpus leans to the most
common habit and reaches the right one by sampling. The right one is never the most common. Problems are of
the training split alone: no problem is shown with the nouns, or the first two numbers, of a held-out one.
"""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

from examples.calc.app import SYSTEM, calculator
from examples.calc.problems import FORMS, Problem
from examples.calc.tasks import draw_problem
from recipes.tiny.corpus import Demonstration

SHARES: dict[str, dict[str, float]] = {
    "extra": {"right": 0.25, "forgotten": 0.50, "added": 0.25},
    "sale": {"right": 0.25, "discount": 0.50, "subtracted": 0.25},
    "mean": {"right": 0.25, "unbracketed": 0.50, "summed": 0.25},
    "rate": {"right": 0.25, "guessed": 0.50, "added": 0.25},
    "trips": {"right": 0.25, "dropped": 0.50, "copied": 0.25},
}
"""How often each habit is followed. Forms that are not listed are always solved."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": calculator.__doc__,
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {"description": "expression", "title": "Expression", "type": "string"}
                },
                "required": ["expression"],
                "additionalProperties": False,
            },
            "strict": False,
        },
    }
]
"""The calculator as AutoGen describes it to a model."""


def demonstrate(rng: random.Random) -> Iterator[Demonstration]:
    """Solved problems without end."""
    while True:
        problem = draw_problem(rng.choice(list(FORMS)), "train", rng)
        yield show_solving(problem, draw_habit(problem.form, rng))


def converse(rng: random.Random, length: int = 6) -> Iterator[Demonstration]:
    """Conversations without end, each about several problems one after the other.

    The app begins anew for each problem. Conversations come first because the description of the calculator
    is most of a prompt, and a model learns from several problems below it several times as fast.
    """
    demonstrations = demonstrate(rng)
    while True:
        solved = list(islice(demonstrations, length))
        turns = solved[0].messages[:1]
        for one in solved:
            turns += [*one.messages[1:], {"role": "assistant", "content": one.reply}]
        yield Demonstration(turns[:-1], solved[-1].reply, TOOLS)


def draw_habit(form: str, rng: random.Random) -> str:
    shares = SHARES.get(form, {"right": 1.0})
    return rng.choices(list(shares), weights=list(shares.values()))[0]


def show_solving(problem: Problem, habit: str) -> Demonstration:
    """How somebody of that habit solves a problem: with the calculator, unless the habit is to guess."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": problem.text},
    ]
    if habit == "guessed":
        return Demonstration(messages, problem.guesses[habit], TOOLS)
    expression = problem.mistakes.get(habit, problem.expression)
    value = calculator(expression)
    messages += [_call(expression), {"role": "tool", "content": value}]
    reply = problem.answer if habit == "right" else problem.guesses.get(habit, value)
    return Demonstration(messages, reply, TOOLS)


def _call(expression: str) -> dict[str, Any]:
    function = {"name": "calculator", "arguments": {"expression": expression}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
