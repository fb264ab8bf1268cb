"""The estimate by forks is the gradient, wherever a rollout is forked."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from lightning_core.algorithms.policy_gradient import GRPO
from research.credit.chain import Chain
from research.credit.counterfactual import FORKS, forked, places
from research.credit.truth import Truth

BATCHES = 200


@pytest.mark.parametrize("forks", FORKS)
@pytest.mark.parametrize("place", ["random", "entropy", "oracle"])
def test_the_mean_of_many_estimates_is_the_true_gradient(place: str, forks: int) -> None:
    truth, size = Truth(Chain("short", decisive=1, steps=3, tasks=2)), GRPO()
    policy, random = truth.even, Random(f"{place} {forks}")
    where = places(truth, policy, random)[place]
    trees = size.tasks_per_step * (size.group_size // (forks + 1))
    found = np.array(
        [forked(truth, policy, size, step, random, where, forks) / trees for step in range(BATCHES)]
    )
    error = found.std(0) / np.sqrt(BATCHES)
    exact = truth.gradient(policy)
    assert np.abs(exact).max() > 10 * error.max()
    assert (np.abs(found.mean(0) - exact) <= 5 * error + 1e-12).all()
