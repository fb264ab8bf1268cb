"""The training script of the fault test: a small app of two agents.

What the app was told it writes to a ledger of its own, a line at a time, before it goes on; a line that was
written outlives the process.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import openai

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope

GROUP_SIZE, TASKS_PER_STEP = 5, 5
TURNS = ("writer", "critic", "writer")
SCHEMA = "Schema: boats(id, name, speed)"
PATIENCE = 1000
"""Attempts of a rollout: a test that kills somebody every second must not run out of them."""


async def solve(task: lightning.Task) -> float:
    """Three calls with pauses between them; the reward is how varied the replies are."""
    scope = current_scope()
    assert scope is not None
    text, varied = str(task.input["question"]), 0
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in TURNS:
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": f"{SCHEMA}\nQuestion: {text}"}],
                    max_completion_tokens=12,
                )
            text = reply.choices[0].message.content or "nothing"
            varied += len(set(text))
            write_down(scope.rollout_id, scope.attempt, reply.id, text)
            await asyncio.sleep(float(os.environ.get("FAULTS_PAUSE", "0")))
    return varied / 60


def write_down(rollout_id: str, attempt: int, reply_id: str, text: str) -> None:
    """One line for one reply, whole or not at all."""
    line = json.dumps([rollout_id, attempt, reply_id, text]) + "\n"
    with Path(os.environ["FAULTS_LEDGER"]).open("ab", buffering=0) as ledger:
        ledger.write(line.encode())


def trainer() -> lightning.Trainer:
    """The trainer; the command line says where its roles are played."""
    return lightning.Trainer(
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP),
        backend=lightning.LocalBackend("tiny", dtype="float32"),
        on_failure=lightning.FailurePolicy(retries=PATIENCE - 1),
        concurrency=6,
        timeout=60,
        progress=False,
    )


if __name__ == "__main__":
    questions = [{"question": f"List the boats with speed above {n}"} for n in range(12)]
    trainer().fit(solve, train=questions)
