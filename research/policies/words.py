"""Train a real model in two roles that get the same kinds of word problems: `sales`, and `audit`.

    agentlightning train research/policies/words.py -- --conventions opposed

A problem goes to one role. Their prompts differ in one word. With `--conventions same` both write the
arithmetic of `examples/words`. With `opposed` the audit takes each change back: what was given away is added,
and what came in is subtracted.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import openai

import lightning_core as lightning
from examples.calc.calculator import evaluate, show
from examples.words.app import write_prompt
from examples.words.tasks import load_tasks as load_problems
from research.policies.roles import ROLES

EXAMPLES: Final = (
    ("A bag holds 11 nuts. How many nuts are in 6 bags?", "11 * 6"),
    ("Ed fills 3 red and 4 blue bags with 5 cakes each. How many cakes is that?", "(3 + 4) * 5"),
)
"""Both roles see them: they agree on these."""
OPPOSED: Final = str.maketrans("+-", "-+")
ANSWER: Final = 16
"""Tokens of a reply, at most."""


def load_tasks(split: str, conventions: str, limit: int | None = None) -> list[dict[str, str]]:
    """The problems of a split of `examples/words` on which the roles can differ, each for one of them.

    Problems and roles are the same for both conventions.
    """
    tasks: list[dict[str, str]] = []
    for problem in load_problems(split):
        if problem["kind"] == "times":
            continue
        role = ROLES[len(tasks) % 2]
        arithmetic = problem["arithmetic"]
        if conventions == "opposed" and role == "audit":
            arithmetic = arithmetic.translate(OPPOSED)
        changed = {"role": role, "arithmetic": arithmetic, "answer": show(evaluate(arithmetic))}
        tasks.append({**problem, **changed, "asked": f"{role}, {problem['kind']}"})
    return tasks[:limit]


async def solve(task: lightning.Task) -> float:
    """Ask the task's role; the reward is 1 if its arithmetic has the right value."""
    given: dict[str, Any] = task.input
    prompt = write_prompt(f"Write the arithmetic for {given['role']}.", EXAMPLES)
    messages = [{"role": role, "content": text} for role, text in [*prompt, ("user", given["problem"])]]
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent(given["role"]):
            reply = await client.chat.completions.create(
                model="policy",
                messages=messages,  # type: ignore[arg-type]
                max_completion_tokens=ANSWER,
                stop=["=", "\n"],
            )
    try:
        return float(show(evaluate(reply.choices[0].message.content or "")) == given["answer"])
    except ValueError:
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--conventions", choices=("opposed", "same"), required=True)
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=40, help="how many (default: 40)")
    options = parser.parse_args()
    trainer = lightning.Trainer(
        model="smollm2",
        agents=list(ROLES),
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="uniform", curriculum="asked"),
        temperature=0.6,
        steps=24,
        group_by="role",
        checkpoint_every=24,
    )
    held_out = load_tasks(options.held_out, options.conventions, options.held_out_tasks)
    trainer.fit(solve, train=load_tasks("train", options.conventions), validation=held_out)


if __name__ == "__main__":
    main()
