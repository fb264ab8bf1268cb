"""A run with versions to serve: an app of one call, and a reward that has something to say in each group."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import openai

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope
from tests.backends.scripted import ScriptedBackend

TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(8)]


async def solve(task: lightning.Task) -> float:
    async with openai.AsyncOpenAI(api_key="none") as client:
        await client.chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": str(task.input["question"])}],
            max_completion_tokens=5,
        )
    scope = current_scope()
    assert scope is not None
    return zlib.crc32(scope.rollout_id.encode()) % 7 / 7


def fit(folder: Path, **settings: Any) -> None:
    """Train on six tasks, evaluate on two."""
    lightning.Trainer(
        **{
            "algorithm": lightning.GRPO(group_size=3, tasks_per_step=2),
            "backend": ScriptedBackend(),
            "folder": folder,
            "progress": False,
            **settings,
        }
    ).fit(solve, train=TASKS[:6], validation=TASKS[6:])
