"""A training script of two named agents on a bare client, such as a user gives to `agentlightning train`."""

import os

import openai

import lightning_core as lightning


async def solve(task: lightning.Task) -> float:
    length = 0
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in ("writer", "critic"):
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": str(task.input["question"])}],
                    max_completion_tokens=8,
                )
            length += len(reply.choices[0].message.content or "")
    if os.environ.get("SMALL_JOB_FAILS"):
        raise RuntimeError("the app is broken today")
    return float(length % 3)


if __name__ == "__main__":
    tasks = [{"question": f"List the boats with speed above {n}."} for n in range(9)]
    lightning.Trainer(
        model="tiny", agents=["writer"], algorithm=lightning.GRPO(group_size=4, tasks_per_step=2), steps=3
    ).fit(solve, train=tasks[:6], validation=tasks[6:])
