"""Replay: which batches are trained on again, for how long, and that a resume changes nothing of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm, Phase
from lightning_core.backends.base import Batch
from lightning_core.errors import TrainingError
from lightning_core.records.types import Rollout
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from tests.trainer.watching import GROUP_SIZE, PER_STEP, Watched, WatchedLocal, fit, grpo, records, solve


def steps_of(batch) -> set[int]:
    """The steps that the rollouts of a batch were made for, by their ids."""
    return {int(trajectory.rollout_id.split("-t")[1].split("-")[0]) for trajectory in batch}


@pytest.mark.parametrize("replay", [1, 2])
def test_a_batch_is_trained_on_again_in_the_next_steps_and_then_no_more(tmp_path: Path, replay: int):
    backend = Watched()
    summary = fit(tmp_path / "run", grpo(replay=replay), backend=backend)
    assert {step: [steps_of(batch) for batch in batches] for step, batches in backend.batches.items()} == {
        step: [{k} for k in range(step, max(-1, step - replay - 1), -1)] for step in range(5)
    }
    times = Counter(t.rollout_id for batches in backend.batches.values() for b in batches for t in b)
    assert max(times.values()) == replay + 1
    assert summary.staleness_max == replay
    last = records(tmp_path / "run").metrics[4].values
    assert last["staleness_max"] == replay
    assert last["replay/tokens"] > 0


def test_what_is_replayed_is_what_was_recorded_and_credited_in_its_own_step(tmp_path: Path):
    backend = WatchedLocal()
    fit(tmp_path / "run", grpo(replay=1), backend=backend)
    assert records(tmp_path / "run").metrics[4].values["replay/importance_weight"] != 1.0
    calls = records(tmp_path / "run").calls
    for step in range(1, 5):
        own, again = backend.batches[step - 1][0], backend.batches[step][1]
        assert again == own
        for trajectory in again:
            recorded = {call.id: call for call in calls[trajectory.rollout_id]}
            for t in trajectory.transitions:
                assert list(t.logprobs) == recorded[t.call_id].choices[t.choice].logprobs
                assert t.policy_version == recorded[t.call_id].policy_version == step - 1


async def intrude(folder: Path) -> None:
    """Somebody else's rollout, in a step and a group of the run."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (one, *_) = await store.find_rollouts("run", step=2, split="train")
        await store.enqueue([Rollout(id="other", run_id="run", task=one.task, group_id=one.group_id, step=2)])
        (attempt,) = await store.lease("another", 1, 60)
        await store.finish(attempt, reward=5.0)


def test_after_a_resume_the_same_is_replayed_as_without_one_whatever_others_asked_for(tmp_path: Path):
    before, after = Watched(), Watched()
    fit(tmp_path / "run", grpo(replay=2), backend=before, steps=3)
    asyncio.run(intrude(tmp_path / "run"))
    fit(tmp_path / "run", grpo(replay=2), backend=after, steps=5, resume=True)
    assert after.batches[3][1:] == [before.batches[2][0], before.batches[1][0]]
    assert after.batches[4][1:] == [after.batches[3][0], before.batches[2][0]]


def test_of_a_step_that_failed_whole_and_was_run_again_only_the_later_rollouts_are_replayed(tmp_path: Path):
    broken = True

    async def app(task: lightning.Task) -> float:
        await solve(task)
        scope = current_scope()
        assert scope is not None
        if broken and "-t1-" in scope.rollout_id:
            raise ValueError("no such table")
        return float(scope.rollout_id.split("-")[-2])

    once, resumed = Watched(), Watched()
    plus = lightning.ReinforcePP(tasks_per_step=4, replay=1)
    with pytest.raises(TrainingError, match="all 4 rollouts failed in step 2"):
        fit(tmp_path / "run", plus, app, backend=once, steps=2)
    broken = False
    fit(tmp_path / "run", plus, app, backend=once, steps=2, resume=True)
    fit(tmp_path / "run", plus, app, backend=resumed, steps=3, resume=True)
    assert len(once.batches[1][0]) == 4
    assert resumed.batches[2][1] == once.batches[1][0]


def test_a_phase_replays_nothing_of_the_phase_before(tmp_path: Path):
    backend = Watched()
    phases = [Phase(grpo(replay=2), 2), Phase(grpo(replay=2), 2)]
    fit(tmp_path / "run", phases, backend=backend, steps=None)
    replayed = {step: [steps_of(b) for b in batches[1:]] for step, batches in backend.batches.items()}
    assert replayed == {0: [], 1: [{0}], 2: [], 3: [{2}]}


def equal_in(*steps: int) -> Any:
    """The app, whose rollouts are all equally good in these steps."""

    async def app(task: lightning.Task) -> float:
        scope = current_scope()
        assert scope is not None
        reward = await solve(task)
        return 1.0 if any(f"-t{step}-" in scope.rollout_id for step in steps) else reward

    return app


def test_a_step_that_teaches_nothing_is_skipped_and_what_is_replayed_is_not(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(replay=1, entropy=0), equal_in(2), backend=backend)
    trained = {step: [steps_of(batch) for batch in batches] for step, batches in backend.batches.items()}
    assert trained == {0: [{0}], 1: [{1}, {0}], 2: [{1}], 3: [{3}], 4: [{4}, {3}]}
    metrics = {step: entry.values for step, entry in records(tmp_path / "run").metrics.items()}
    assert metrics[2]["skipped_updates"] == 1
    assert metrics[2]["replay/tokens"] > 0
    assert metrics[2]["staleness_mean"] == metrics[2]["staleness_max"] == 1
    assert [metrics[step]["policy_version"] for step in range(5)] == [1, 2, 3, 4, 5]
    assert [metrics[step].get("replay/skipped") for step in range(5)] == [None, 0, 0, None, 0]


def test_a_bonus_on_entropy_is_trained_on_alone_only_after_rewards_have_differed(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(), equal_in(0, 2), backend=backend, steps=2)
    assert [steps_of(batch) for batches in backend.batches.values() for batch in batches] == [{1}]
    first = records(tmp_path / "run").metrics[0].values
    assert first["skipped_updates"] == 1
    assert not any(value for name, value in first.items() if name.endswith("/transitions"))
    fit(tmp_path / "run", grpo(), equal_in(0, 2), backend=backend, steps=3, resume=True)
    (equal,) = backend.batches[2]
    usual = -0.05 * records(tmp_path / "run").metrics[2].values["entropy"]
    assert [t.advantage for each in equal for t in each.transitions] == [pytest.approx(usual)] * 2 * PER_STEP


def test_the_bonus_is_measured_from_its_mean_over_the_agent_s_tokens(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(), surprised_from(0), backend=backend, steps=1)
    found = records(tmp_path / "run")
    (batch,) = backend.batches[0]
    given = [
        t.advantage + 0.05 * found.metrics[0].values["entropy"] for each in batch for t in each.transitions
    ]
    assert sum(given) == pytest.approx(0)
    shaped = [
        [t.advantage - 0.05 * logprob for logprob in t.logprobs] for each in batch for t in each.transitions
    ]
    assert sum(map(sum, shaped)) == pytest.approx(0)  # all replies have the same length


def talk(task: lightning.Task) -> Any:
    """Returns the prompt of a call."""
    return {"model": "policy", "messages": [{"role": "user", "content": str(task.input["question"])}]}


def surprised_from(first: int, *equal: str) -> Any:
    """An app whose replies are of one token before a step, and then of more, which have lower
    log-probabilities in the mean. Rollouts with `equal` in their id have the same reward."""

    async def app(task: lightning.Task) -> float:
        scope = current_scope()
        assert scope is not None
        later = int(scope.rollout_id.split("-t")[1].split("-")[0]) >= first
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                await client.chat.completions.create(**talk(task), max_completion_tokens=6 if later else 1)
        place = float(scope.rollout_id.rpartition("-")[2])
        return 1.0 if any(mark in scope.rollout_id for mark in equal) else place / GROUP_SIZE

    return app


def test_while_the_bonus_is_left_out_the_loss_keeps_its_scale_and_equal_rewards_teach_nothing(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(), surprised_from(5, "-t5-0-", "-t6-"), backend=backend, steps=8)
    metrics = [entry.values for entry in records(tmp_path / "run").metrics.values()]
    assert [values.get("entropy_bonus") for values in metrics] == [0.05] * 5 + [0.0, None, 0.0]
    assert [values["zero_variance_groups"] for values in metrics] == [0, 0, 0, 0, 0, 1, 2, 0]
    assert {step: len(batch) for step, (batch,) in backend.batches.items()} == dict.fromkeys(
        [0, 1, 2, 3, 4, 5, 7], PER_STEP
    )
    assert metrics[6]["skipped_updates"] == 1


def test_a_batch_that_only_the_bonus_taught_is_not_replayed_while_that_is_left_out(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(replay=1), surprised_from(5, "-t4-"), backend=backend, steps=7)
    trained = {step: [steps_of(batch) for batch in batches] for step, batches in backend.batches.items()}
    assert trained == {0: [{0}], **{k: [{k}, {k - 1}] for k in (1, 2, 3, 4, 6)}, 5: [{5}]}


def test_more_words_of_an_agent_that_is_less_sure_do_not_count_as_entropy_that_rose(tmp_path: Path):
    async def app(task: lightning.Task) -> float:
        scope = current_scope()
        assert scope is not None
        later = int(scope.rollout_id.split("-t")[1].split("-")[0]) >= 3
        async with openai.AsyncOpenAI(api_key="none") as client:
            for agent in ["planner", *["writer"] * (3 if later else 1)]:
                with lightning.agent(agent):
                    await client.chat.completions.create(
                        **talk(task), max_completion_tokens=1 if agent == "planner" else 6
                    )
        return float(scope.rollout_id.rpartition("-")[2]) / GROUP_SIZE

    fit(tmp_path / "run", grpo(), app, agents=["planner", "writer"], steps=7)
    metrics = [entry.values for entry in records(tmp_path / "run").metrics.values()]
    assert metrics[6]["entropy"] > metrics[0]["entropy"]
    for name in ("planner", "writer"):
        assert metrics[6][f"agent/{name}/entropy"] == pytest.approx(metrics[0][f"agent/{name}/entropy"])
    assert [values["entropy_bonus"] for values in metrics] == [0.05] * 7


def test_a_resumed_run_does_not_replay_what_came_before_rewards_differed(tmp_path: Path):
    peace, resumed = Watched(), Watched()
    fit(tmp_path / "peace", grpo(replay=2), equal_in(0, 1), backend=peace, steps=4)
    for steps in (2, 4):
        fit(tmp_path / "run", grpo(replay=2), equal_in(0, 1), backend=resumed, steps=steps, resume=steps > 2)
    for backend in (peace, resumed):
        trained = {step: [steps_of(batch) for batch in batches] for step, batches in backend.batches.items()}
        assert trained == {2: [{2}], 3: [{3}, {2}]}


def test_demonstrations_do_not_count_as_rewards_that_differed(tmp_path: Path):
    backend = Watched()
    said = [{"role": "user", "content": "How fast?"}, {"role": "assistant", "content": "Nine knots."}]
    phases = [
        Phase(
            lightning.SFT(demonstrations=[{"agent": "writer", "messages": said[:1], "reply": "Nine knots."}]),
            1,
        ),
        Phase(grpo(), 2),
    ]
    fit(tmp_path / "run", phases, equal_in(1, 2), backend=backend, steps=None)
    assert list(backend.batches) == [0]


class Refusing(Watched):
    """Can't make an update from what was sampled for another step."""

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        if steps_of(batch.trajectories) != {batch.step}:
            raise TrainingError("the gradient is not finite")
        return await super().update(batch, algorithm)


def test_a_batch_that_can_not_be_replayed_is_counted(tmp_path: Path):
    fit(tmp_path / "run", grpo(replay=2), backend=Refusing(), steps=3)
    metrics = [entry.values for entry in records(tmp_path / "run").metrics.values()]
    assert [values.get("replay/skipped") for values in metrics] == [None, 1, 2]
    assert [values["staleness_max"] for values in metrics] == [0, 0, 0]
