"""The law of untrained agents: one trained and one hosted agent in one app, over two steps of training.

The hosted model's server sees its own agent's calls exactly as the app made them; the store holds them as
seen; and no update uses any of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

import lightning_core as lightning
from lightning_core.backends.base import Batch
from lightning_core.records.types import Call, Transition
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.trainer.summary import Summary

TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(4)]
ROLLOUTS = 2 * 2 * 3
"""Steps x tasks x group."""


class KeepingBackend(lightning.LocalBackend):
    """The local backend, which also keeps what it was given to train on."""

    def __init__(self) -> None:
        super().__init__("tiny")
        self.consumed: list[Transition] = []

    async def update(self, batch: Batch, algorithm: Any) -> dict[str, float]:
        self.consumed += [one for trajectory in batch.trajectories for one in trajectory.transitions]
        return await super().update(batch, algorithm)


@dataclass
class Trained:
    """The records of an ended run."""

    hosted: GatewayDouble
    summary: Summary
    consumed: list[Transition]
    calls: list[Call]


async def run_app(hosted: GatewayDouble, task: lightning.Task) -> None:
    """`writer` names no endpoint; `critic` calls its hosted model, whole and streamed."""
    question = str(task.input["question"])
    own = openai.AsyncOpenAI(api_key="sk-of-the-app", base_url=f"{hosted.url}/v1")
    async with openai.AsyncOpenAI(api_key="none") as client, own:
        with lightning.agent("writer"):
            reply = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": question}], max_completion_tokens=6
            )
        text = reply.choices[0].message.content or ""
        with lightning.agent("critic"):
            judged = [{"role": "user", "content": f"judge: {text}"}]
            await own.chat.completions.create(model="large", messages=judged)
            async for _ in await own.chat.completions.create(model="large", messages=judged, stream=True):
                pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder: Path = tmp_path_factory.mktemp("hosted") / "run"
    backend = KeepingBackend()
    with serving() as hosted:
        rewards = itertools.count()  # no two alike: every group has something to learn from

        async def solve(task: lightning.Task) -> float:
            await run_app(hosted, task)
            return float(next(rewards))

        trainer = lightning.Trainer(
            model="tiny",
            agents=["writer"],
            algorithm=lightning.GRPO(group_size=3, tasks_per_step=2),
            backend=backend,
            store=f"sqlite:///{folder.parent / 'runs.db'}",
            steps=2,
            folder=folder,
            progress=False,
            on_failure=lightning.FailurePolicy(retries=0),
        )
        summary = trainer.fit(solve, train=TASKS)
        yield Trained(
            hosted, summary, backend.consumed, asyncio.run(_calls(folder.parent / "runs.db", summary.run))
        )


async def _calls(path: Path, run: str) -> list[Call]:
    async with SqliteStore(f"sqlite:///{path}") as store:
        rollouts = await store.find_rollouts(run)
        return [call for part in (await store.get_calls([r.id for r in rollouts])).values() for call in part]


def test_the_hosted_server_sees_its_own_agents_calls_and_nothing_of_ours(trained: Trained) -> None:
    seen = trained.hosted.seen
    assert len(seen) == 2 * ROLLOUTS
    assert all(request.body["messages"][0]["content"].startswith("judge: ") for request in seen)
    assert {request.headers["authorization"] for request in seen} == {"Bearer sk-of-the-app"}
    assert not any("lightning" in name + value for r in seen for name, value in r.headers.items())


def test_the_store_holds_them_as_seen(trained: Trained) -> None:
    hosted = [call for call in trained.calls if call.agent == "critic"]
    assert len(hosted) == len({call.id for call in hosted}) == 2 * ROLLOUTS
    assert {(call.endpoint, call.trained, call.status, call.model) for call in hosted} == {
        (f"{trained.hosted.url}/v1", False, "completed", "large")
    }
    assert all(call.choices[0].message["content"] == "it is done" for call in hosted)
    assert all(call.prompt_ids is None and call.choices[0].completion_ids is None for call in hosted)
    assert {call.request["messages"][0]["content"] for call in hosted} == {  # type: ignore[index,call-overload]
        request.body["messages"][0]["content"] for request in trained.hosted.seen
    }
    assert "sk-of-the-app" not in repr(trained.calls)


def test_no_update_used_any_of_them(trained: Trained) -> None:
    answered = {call.id for call in trained.calls if call.endpoint is None}
    assert len(answered) == ROLLOUTS
    assert {transition.call_id for transition in trained.consumed} == answered
    assert {transition.agent for transition in trained.consumed} == {"writer"}


def test_the_summary_counts_them_as_not_trained(trained: Trained) -> None:
    critic, writer = trained.summary.agents["critic"], trained.summary.agents["writer"]
    assert (critic.trained, critic.calls, critic.transitions_with_advantage) == (False, 2 * ROLLOUTS, 0)
    assert (writer.trained, writer.calls) == (True, ROLLOUTS)
    assert writer.transitions_with_advantage > 0


def test_without_an_agent_to_train_all_are_recorded_where_the_app_sends_them(tmp_path: Path) -> None:
    with serving() as hosted:

        async def solve(task: lightning.Task) -> float:
            async with openai.AsyncOpenAI(api_key="sk-of-the-app", base_url=f"{hosted.url}/v1") as own:
                with lightning.agent("writer"):
                    said = [{"role": "user", "content": str(task.input["question"])}]
                    await own.chat.completions.create(model="large", messages=said)  # type: ignore[arg-type]
            return float("3" in str(task.input["question"]))

        trainer = lightning.Trainer(agents=[], steps=0, folder=tmp_path / "run", progress=False)
        summary = trainer.fit(solve, validation=TASKS)
    assert len(hosted.seen) == 2 * len(TASKS)  # each task is tried twice
    assert summary.before is not None
    assert summary.before.sampled == 1 / len(TASKS)
    assert summary.model == "none"
    kept = lightning.demonstrations(tmp_path / "run", least_reward=1.0, split="validation")
    assert [(each.agent, each.reply) for each in kept] == 2 * [("writer", {"content": "it is done"})]


def test_training_no_agent_is_refused() -> None:
    with pytest.raises(lightning.LightningError, match="agents=\\[\\] trains no agent"):
        lightning.Trainer(agents=[], steps=1)
