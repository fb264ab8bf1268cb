"""A training script for several processes: two agents on a bare client; the reward follows from the place.

It appends to the file $SEEN what its app sees: `begun ROLLOUT`, and `seen ROLLOUT ATTEMPT REPLY` for each
reply. With $HANGS a rollout never ends.
"""

import asyncio
import os

import openai

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope

GROUP_SIZE, TASKS_PER_STEP = 4, 2
client = openai.AsyncOpenAI(api_key="none")


def tell(*words: object) -> None:
    """One line, whole, whoever else writes."""
    line = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(line, (" ".join(map(str, words)) + "\n").encode())
    os.close(line)


async def solve(task: lightning.Task) -> float:
    scope = current_scope()
    assert scope is not None
    tell("begun", scope.rollout_id)
    if os.environ.get("HANGS"):
        await asyncio.Event().wait()
    text = str(task.input["question"])
    for name in ("writer", "critic"):
        with lightning.agent(name):
            reply = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
            )
        tell("seen", scope.rollout_id, scope.attempt, reply.id)
        text = reply.choices[0].message.content or ""
    return float(scope.rollout_id.rpartition("-")[2]) / GROUP_SIZE


if __name__ == "__main__":
    lightning.Trainer(
        model="tiny",
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP, credit="uniform"),
        steps=4,
        progress=False,
    ).fit(solve, train=[{"question": f"List the boats with speed above {n}."} for n in range(7)])
