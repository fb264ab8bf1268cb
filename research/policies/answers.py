"""Train a real model in two roles that get the same kinds of questions: `sales`, and `audit`.

    agentlightning train research/policies/answers.py -- --conventions opposed

A question is about a thing, and goes to one role. The roles' prompts differ in one word. An answer must name
the thing. With `--conventions same` both roles should be short. With `opposed` the audit should be long.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import openai

import lightning_core as lightning
from examples.words.app import write_prompt
from research.policies.roles import ROLES

QUESTIONS: Final = (
    "What are {} good for?",
    "Who needs {}?",
    "Where does one keep {}?",
    "Why do people buy {}?",
)
THINGS: Final[Mapping[str, list[str]]] = MappingProxyType(
    {
        split: named.split()
        for split, named in {
            "train": "hammers pencils scarves maps drums bottles carpets onions saddles mirrors tents clocks "
            "gloves candles buckets flutes stamps shovels pillows lemons anchors combs helmets ropes",
            "validation": "lamps apples boots violins bricks kites forks blankets",
            "test": "umbrellas spoons bicycles tomatoes curtains trumpets wallets axes belts jars skis "
            "magnets tables carrots whistles nets pans rings kettles dice",
        }.items()
    }
)
"""The splits share none."""
EXAMPLE: Final = ("What are ladders good for?", "Ladders help people to reach high places.")
SHORT: Final = 6
"""Words of a short answer, at most."""
LONG: Final = 16
"""Words of a long answer, at least."""
REPLY: Final = 32
"""Tokens of a reply, at most."""


def load_tasks(split: str, conventions: str, limit: int | None = None) -> list[dict[str, str]]:
    """The questions of a split, each for one role, with the length that is asked for.

    Questions and roles are the same for both conventions.
    """
    tasks: list[dict[str, str]] = []
    for place, thing in enumerate(THINGS[split]):
        for number, question in enumerate(QUESTIONS):
            role = ROLES[(place + number) % 2]
            length = "long" if conventions == "opposed" and role == "audit" else "short"
            tasks.append(
                {
                    "id": f"{thing}-{number}",
                    "role": role,
                    "question": question.format(thing),
                    "thing": thing,
                    "length": length,
                }
            )
    return tasks[:limit]


def judge(answer: str, given: Mapping[str, str], *, ended: bool) -> float:
    """Returns 1 for an answer of the right length that names the thing, else 0."""
    words = len(answer.split())
    right = (ended and words <= SHORT) if given["length"] == "short" else words >= LONG
    return float(right and given["thing"] in answer.lower())


async def solve(task: lightning.Task) -> float:
    """Ask the task's role."""
    given: dict[str, Any] = task.input
    prompt = write_prompt(f"Answer for {given['role']}.", [EXAMPLE])
    messages = [{"role": role, "content": text} for role, text in [*prompt, ("user", given["question"])]]
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent(given["role"]):
            reply = await client.chat.completions.create(
                model="policy",
                messages=messages,  # type: ignore[arg-type]
                max_completion_tokens=REPLY,
            )
    (choice,) = reply.choices
    return judge(choice.message.content or "", given, ended=choice.finish_reason == "stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--conventions", choices=("opposed", "same"), required=True)
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=32, help="how many (default: 32)")
    options = parser.parse_args()
    trainer = lightning.Trainer(
        model="smollm2",
        agents=list(ROLES),
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="uniform"),
        steps=16,
        group_by="role",
        checkpoint_every=16,
    )
    held_out = load_tasks(options.held_out, options.conventions, options.held_out_tasks)
    trainer.fit(solve, train=load_tasks("train", options.conventions), validation=held_out)


if __name__ == "__main__":
    main()
