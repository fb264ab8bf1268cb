"""The metrics of a step about its time."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import openai

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.backends.meter import Meter
from lightning_core.records.types import Metrics
from lightning_core.stores.sqlite import SqliteStore

TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(2)]


class Counting(lightning.LocalBackend):
    """The local backend, as if its optimizer were somebody else's."""

    def __init__(self) -> None:
        super().__init__("tiny")
        self.busy = Meter()

    @property
    def busy_seconds(self) -> float:
        return self.busy.seconds

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        with self.busy:
            return await super().update(batch, algorithm)


async def solve(task: lightning.Task) -> float:
    async with openai.AsyncOpenAI(api_key="none") as client:
        messages = [{"role": "user", "content": str(task.input["question"])}]
        await client.chat.completions.create(model="policy", messages=messages, max_completion_tokens=5)
    return random.random()  # never equal in a group, so that each step has its update


def steps_of(folder: Path, backend: lightning.LocalBackend) -> list[Metrics]:
    """Returns the metrics of a run of two steps with an evaluation before, between and after them."""
    trainer = lightning.Trainer(
        backend=backend,
        algorithm=lightning.GRPO(group_size=4, tasks_per_step=2),
        steps=2,
        evaluate_every=1,
        folder=folder,
        progress=False,
    )
    trainer.fit(solve, train=TASKS, validation=TASKS)

    async def read() -> list[Metrics]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            return await store.list_metrics("run")

    return asyncio.run(read())


def test_a_step_says_what_its_backend_and_its_parts_took(tmp_path: Path) -> None:
    backend = Counting()
    steps = steps_of(tmp_path / "run", backend)
    updates = sum(step.values["update_seconds"] for step in steps)
    assert updates <= sum(step.values["backend_seconds"] for step in steps) <= backend.busy_seconds
    for step in steps:
        parts = (step.values[f"{part}_seconds"] for part in ("collect", "backend", "publish"))
        assert sum(parts) <= step.values["step_seconds"]
        assert step.values["process_seconds"] > 0
    [most] = re.findall(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert 0.1 < steps[0].values["memory_gib"] <= steps[1].values["memory_gib"] <= int(most) / (1 << 20)


def test_a_backend_that_does_not_count_its_work_is_not_said_to_be_idle(tmp_path: Path) -> None:
    steps = steps_of(tmp_path / "run", lightning.LocalBackend("tiny"))
    assert all("step_seconds" in step.values for step in steps)
    assert not any("backend_seconds" in step.values for step in steps)
