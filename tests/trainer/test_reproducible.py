"""Equal seeds make equal runs, whatever the order in which calls arrive and wherever rollouts run."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import openai
import pytest

import lightning_core as lightning
from lightning_core.stores.sqlite import SqliteStore
from tests.backends.models import save_model

STEPS = 5
TASKS = [{"question": f"How many rows are in table {name}?"} for name in "abcdefgh"]

Replies = dict[tuple[Any, ...], list[tuple[str, tuple[int, ...]]]]


async def solve(task: lightning.Task) -> float:
    """Three calls of two agents, two of them at once and with one prompt, at times that chance decides."""

    async def say(agent: str, text: str) -> str:
        await asyncio.sleep(random.random() * 0.05)
        with lightning.agent(agent):
            reply = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
            )
        return reply.choices[0].message.content or ""

    question = str(task.input["question"])
    async with openai.AsyncOpenAI(api_key="none") as client:
        drafts = await asyncio.gather(say("writer", question), say("writer", question))
        verdict = await say("critic", "\n".join(sorted(drafts)))
    return len(verdict) % 3 / 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, whose replies differ widely."""
    return save_model(tmp_path_factory.mktemp("model") / "qwen", "qwen3")


def train(model: Path, folder: Path, *, seed: int = 0, steps: int = STEPS, **more: Any) -> Replies:
    """The replies and rewards of each place of a run."""
    trainer = lightning.Trainer(
        backend=lightning.LocalBackend(model, learning_rate=1e-3),
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=4, credit="uniform"),
        store=f"sqlite:///{folder / 'store.db'}",
        folder=folder,
        seed=seed,
        steps=steps,
        keep_checkpoints=1,
        progress=False,
        concurrency=32,
        **more,
    )
    trainer.fit(solve, train=TASKS)
    return asyncio.run(read(folder))


async def read(folder: Path) -> Replies:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        rollouts = await store.find_rollouts(run.id)
        calls = await store.get_calls([rollout.id for rollout in rollouts])
    found: Replies = {}
    for rollout in rollouts:
        assert rollout.place is not None
        key = rollout.step, rollout.place, rollout.task.id, rollout.reward
        said = [
            (call.agent, tuple(choice.completion_ids or ()))
            for call in calls[rollout.id]
            for choice in call.choices
        ]
        found[key] = sorted(said)
    return found


def test_equal_seeds_give_equal_replies_and_rewards(model: Path, tmp_path: Path) -> None:
    first = train(model, tmp_path / "first")
    assert len(first) == STEPS * 32
    assert all(len(said) == 3 for said in first.values())
    assert len({str(said) for said in first.values()}) > 100
    assert train(model, tmp_path / "second") == first
    other = train(model, tmp_path / "other", seed=1, steps=1)
    assert not {str(said) for said in other.values()} & {str(said) for said in first.values()}


def test_a_run_by_workers_equals_one_in_this_process(model: Path, tmp_path: Path) -> None:
    here = train(model, tmp_path / "here", steps=3)
    assert train(model, tmp_path / "workers", steps=3, workers=2) == here


def test_a_resumed_run_equals_one_in_peace(model: Path, tmp_path: Path) -> None:
    # of thirty seeds the one whose draws stay farthest, 1.2e-6, from a bound between two tokens
    train(model, tmp_path / "resumed", seed=12, steps=5)
    peace = train(model, tmp_path / "peace", seed=12, steps=6)
    assert train(model, tmp_path / "resumed", seed=12, steps=6, resume=True) == peace
    for name in ("resumed", "peace"):
        entropies, bonuses = asyncio.run(read_bonuses(tmp_path / name))
        # the last five steps have more entropy than the first five; a run that forgot these would not see it
        assert entropies[5] > entropies[0]
        assert bonuses == [0.05] * 5 + [0.0]


async def read_bonuses(folder: Path) -> tuple[list[float], list[float]]:
    """The entropy of each step's batch, and the weight of the bonus in its update."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        values = [each.values for each in await store.list_metrics(run.id)]
    return [each["entropy"] for each in values], [each["entropy_bonus"] for each in values]
