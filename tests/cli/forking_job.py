"""Apps of two agents for `agentlightning fork`: the second is told the first's words, and one thing more."""

import os
import random
import time
import urllib.request
import zlib

import openai

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope


def more() -> str:
    """Returns the part of the second prompt that depends on the environment variable."""
    match os.environ.get("FORKING_JOB", ""):
        case "time":
            return f"It is {time.time_ns()}."
        case "chance":
            return f"Your number is {random.random()}."
        case address if address:
            with urllib.request.urlopen(address) as reply:
                return str(reply.read().decode())
    return ""


async def solve(task: lightning.Task) -> float:
    said = str(task.input["question"])
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in ("writer", "critic"):
            words = said if name == "writer" else f"{said} {more()}"
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": words}], max_completion_tokens=4
                )
            said = reply.choices[0].message.content or ""
    scope = current_scope()
    assert scope is not None
    return zlib.crc32(scope.rollout_id.encode()) % 7 / 7


if __name__ == "__main__":
    lightning.Trainer(model="tiny", steps=0).fit(solve, validation=[{"question": "List the boats."}])
