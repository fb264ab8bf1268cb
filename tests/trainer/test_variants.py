"""Every kind of policy gradient makes an update of a real run."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import openai
import pytest

import lightning_core as lightning
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder

TASKS = [{"number": n} for n in range(6)]
KINDS = {
    "rloo": lightning.RLOO(group_size=2, tasks_per_step=3),
    "reinforce++": lightning.ReinforcePP(tasks_per_step=6),
    "dr_grpo": lightning.GRPO(group_size=2, tasks_per_step=3, scale="none", aggregation=3, epochs=2),
    "gspo": lightning.GRPO(
        group_size=2, tasks_per_step=3, ratio="sequence", aggregation="sequence", clip=(3e-4, 0.28), epochs=2
    ),
    "cispo": lightning.GRPO(group_size=2, tasks_per_step=3, ratio="weight", clip=(1.0, 0.28), epochs=2),
}


class App:
    """Rewards 0 and 1 in turn, over the rollouts of a task and over tasks. Each rollout is asked differently:
    equal replies of opposite advantage would cancel out."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    async def solve(self, task: lightning.Task) -> float:
        number = int(task.input["number"])
        self.seen[number] += 1
        turn = self.seen[number]
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": f"List boats {number}, {turn}."}],
                    max_completion_tokens=8,
                )
        return (turn + number) % 2.0


def test_the_weights_that_are_stored_are_those_within_each_mini_batch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lightning.Trainer(
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=2, tasks_per_step=3, mini_batch_size=1),
        backend=lightning.LocalBackend("tiny"),
        steps=1,
        folder=folder,
        progress=False,
    ).fit(App().solve, train=TASKS)

    async def read() -> dict[str, float]:
        async with SqliteStore(RunFolder(folder, resume=True).store_url) as store:
            rollouts = await store.find_rollouts(folder.name, step=0, split="train")
            calls = await store.get_calls([one.id for one in rollouts])
            credited = await store.get_credited([one.id for one in rollouts])
        found: defaultdict[str, float] = defaultdict(float)
        for one in rollouts:
            [call], [given] = calls[one.id], credited[one.id]
            found[one.task.id] += given.weight * len(call.choices[0].completion_ids)
        return found

    assert list(asyncio.run(read()).values()) == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_makes_its_update(kind: str, tmp_path: Path) -> None:
    app = App()
    folder = tmp_path / "run"
    lightning.Trainer(
        agents=["writer"],
        algorithm=KINDS[kind],
        backend=lightning.LocalBackend("tiny"),
        steps=1,
        folder=folder,
        progress=False,
    ).fit(app.solve, train=TASKS)

    async def read() -> dict[str, float]:
        async with SqliteStore(RunFolder(folder, resume=True).store_url) as store:
            [entry] = await store.list_metrics(folder.name)
            return entry.values

    values = asyncio.run(read())
    assert app.seen.total() == values["rollouts"] == 6
    assert values["policy_version"] == 1
    assert values["grad_norm"] > 0
    assert 0 <= values["clip_share"] <= values.get("loss_weight", 1.0)
