"""Replay: which batches are trained on again, for how long, and that a resume changes nothing of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lightning_core.algorithms.base import Phase
from tests.trainer.watching import Watched, fit, grpo, records


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
    assert last["replay/importance_weight"] != 1.0


def test_what_is_replayed_is_what_was_recorded_and_credited_in_its_own_step(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(replay=1), backend=backend)
    calls = records(tmp_path / "run").calls
    for step in range(1, 5):
        own, again = backend.batches[step - 1][0], backend.batches[step][1]
        assert again == own
        for trajectory in again:
            recorded = {call.id: call for call in calls[trajectory.rollout_id]}
            for t in trajectory.transitions:
                assert list(t.logprobs) == recorded[t.call_id].choices[t.choice].logprobs
                assert t.policy_version == recorded[t.call_id].policy_version == step - 1


def test_after_a_resume_the_same_is_replayed_as_without_one(tmp_path: Path):
    before, after = Watched(), Watched()
    fit(tmp_path / "run", grpo(replay=2), backend=before, steps=3)
    fit(tmp_path / "run", grpo(replay=2), backend=after, steps=5, resume=True)
    assert after.batches[3][1:] == [before.batches[2][0], before.batches[1][0]]
    assert after.batches[4][1:] == [after.batches[3][0], before.batches[2][0]]


def test_a_phase_replays_nothing_of_the_phase_before(tmp_path: Path):
    backend = Watched()
    phases = [Phase(grpo(replay=2), 2), Phase(grpo(replay=2), 2)]
    fit(tmp_path / "run", phases, backend=backend, steps=None)
    replayed = {step: [steps_of(b) for b in batches[1:]] for step, batches in backend.batches.items()}
    assert replayed == {0: [], 1: [{0}], 2: [], 3: [{2}]}
