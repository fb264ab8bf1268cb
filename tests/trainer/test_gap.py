"""A run stops where what is trained is not what was sampled, and old tokens are no sign of that."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.backends.base import Batch
from lightning_core.errors import ConfigError, TrainingError
from tests.trainer.watching import WatchedLocal, fit, grpo, records


class Forgetful(WatchedLocal):
    """Its engine goes on with the first weights, and says that it has the newest ones."""

    async def publish(self) -> int:
        self.policy_version += 1
        await asyncio.wrap_future(self.sampler.call(self._count))
        return self.policy_version

    def _count(self) -> None:
        self.sampler.policy_version = self.policy_version


def test_a_run_whose_gap_grows_in_training_stops_with_both_figures(tmp_path: Path) -> None:
    backend = Forgetful(learning_rate=3e-3, warmup_steps=0)
    with pytest.raises(TrainingError, match=r"when sampled and when trained \(-") as stopped:
        fit(tmp_path / "run", grpo(), backend=backend, steps=20, checkpoint_every=1)
    made = records(tmp_path / "run").metrics
    assert 1 <= len(made) < 20
    assert made[0].values["logprob_gap_mean"] < 1e-4
    assert all(each.values["logprob_gap_mean"] <= 0.2 for each in made.values())
    said = str(stopped.value)
    assert f"step {len(made) + 1}: " in said
    assert "max_logprob_gap" in said
    assert "was not published" in said
    # a limit of one's own, and none
    fit(
        tmp_path / "free",
        grpo(),
        backend=Forgetful(learning_rate=3e-3),
        steps=len(made) + 1,
        max_logprob_gap=1e9,
    )


@pytest.mark.parametrize("options", [{"replay": 2}, {"staleness": 1}])
def test_stale_and_replayed_tokens_are_not_in_the_gap(tmp_path: Path, options: dict[str, int]) -> None:
    backend = WatchedLocal(learning_rate=3e-3)
    fit(tmp_path / "run", grpo(**options), backend=backend, max_logprob_gap=1e-3)
    made = records(tmp_path / "run").metrics
    assert made[4].values["staleness_max"] > 0
    assert [each.values.get("logprob_gap_mean", 0.0) < 1e-4 for each in made.values()] == [True] * 5
    assert made[0].values["half_precision"] == 0


def test_what_other_weights_sampled_is_in_no_gap(tmp_path: Path) -> None:
    backend = WatchedLocal(learning_rate=1e-3)
    fit(tmp_path / "run", grpo(), backend=backend, steps=1)
    (batch,) = backend.batches[0]
    older = [
        replace(each, transitions=tuple(replace(t, policy_version=7) for t in each.transitions))
        for each in batch
    ]

    async def update_again() -> dict[str, float]:
        fresh = lightning.LocalBackend("tiny")
        await fresh.start()
        try:
            return await fresh.update(Batch(0, tuple(older)), grpo())
        finally:
            await fresh.close()

    assert not {"logprob_gap_mean", "logprob_gap_max"} & asyncio.run(update_again()).keys()


@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_a_limit_that_stops_every_run_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="max_logprob_gap"):
        lightning.Trainer(model="tiny", max_logprob_gap=limit)
