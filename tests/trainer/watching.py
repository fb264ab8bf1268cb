"""Small training runs whose batches can be looked at afterwards; on canned replies, or on a real model."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.records.types import Call, Metrics, Rollout, Trajectory
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trainer.summary import Summary
from tests.backends.scripted import ScriptedBackend

GROUP_SIZE, TASKS_PER_STEP = 4, 2
PER_STEP = GROUP_SIZE * TASKS_PER_STEP


class Watched(ScriptedBackend):
    """Keeps every batch that it was given, by step."""


class WatchedLocal(lightning.LocalBackend):
    """The same, with a real model."""

    def __init__(self, **options: Any) -> None:
        super().__init__("tiny", **options)
        self.batches: defaultdict[int, list[tuple[Trajectory, ...]]] = defaultdict(list)

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        self.batches[batch.step].append(batch.trajectories)
        return await super().update(batch, algorithm)


async def solve(task: lightning.Task) -> float:
    """Two calls of one agent; the reward follows from the place in the group, so that no group is equal."""
    text = str(task.input["question"])
    async with openai.AsyncOpenAI(api_key="none") as client:
        for _ in range(2):
            with lightning.agent("writer"):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
                )
            text = reply.choices[0].message.content or "nothing"
    scope = current_scope()
    assert scope is not None
    return float(scope.rollout_id.rpartition("-")[2]) / GROUP_SIZE


def grpo(**options: Any) -> lightning.GRPO:
    """A small step."""
    return lightning.GRPO(group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP, **options)


def fit(
    folder: Path, algorithm: Any, app: Any = solve, validation: Sequence[Any] = (), **settings: Any
) -> Summary:
    """Five steps on seven tasks."""
    trainer = lightning.Trainer(
        **{
            "agents": ["writer"],
            "algorithm": algorithm,
            "backend": Watched(),
            "steps": 5,
            "folder": folder,
            "progress": False,
            **settings,
        }
    )
    train = [{"question": f"List the boats with speed above {n}."} for n in range(7)]
    return trainer.fit(app, train=train, validation=validation)


@dataclass(frozen=True)
class Records:
    """The records of a run in its store."""

    rollouts: list[Rollout]
    calls: dict[str, list[Call]]
    metrics: dict[int, Metrics]


def records(folder: Path) -> Records:
    """Everything of training; the metrics by step."""

    async def read() -> Records:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            rollouts = await store.find_rollouts(folder.name, split="train")
            calls = await store.get_calls([rollout.id for rollout in rollouts])
            metrics = await store.list_metrics(folder.name)
            return Records(rollouts, calls, {entry.step: entry for entry in metrics})

    return asyncio.run(read())
