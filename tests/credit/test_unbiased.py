"""The mean of many simulated gradients is the true one, which is known: a sum over all stories of a game."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from lightning_core.credit.base import Baseline, Credit, assign
from lightning_core.credit.discounted import Discounted
from lightning_core.credit.turn import turn
from lightning_core.credit.uniform import uniform
from tests.credit.game import POLICY, Floats, gradient, play, score

GROUPS, SIZE = 3000, 4


def estimates(credit: Credit, baseline: Baseline = "leave_one_out", seed: int = 0) -> Floats:
    """(GROUPS, state, action) the policy gradient as estimated from each group."""
    random = Random(seed)
    found = np.zeros((GROUPS, *POLICY.shape))
    for number in range(GROUPS):
        played = [play(POLICY, random, f"g{number}", i) for i in range(SIZE)]
        credited, _ = assign([trajectory for trajectory, _ in played], credit, baseline, "none")
        for trajectory, (_, story) in zip(credited, played, strict=False):
            for t, at in zip(trajectory.transitions, story, strict=True):
                if t.advantage is not None:
                    found[number] += t.advantage * score(POLICY, at) / SIZE
    return found


def distance(found: Floats) -> float:
    """How many standard errors the mean estimate is off, where it is furthest off."""
    error = found.std(0) / np.sqrt(len(found))
    return float((np.abs(found.mean(0) - gradient(POLICY)) / error).max())


def test_the_true_gradient_is_the_slope_of_the_expected_return():
    # against a difference quotient, so that the yardstick itself is checked
    from tests.credit.game import START, probabilities, stories, total

    def expected(logits: Floats) -> float:
        return sum(p * total(story, final) for p, story, final in stories(probabilities(logits)))

    for index in np.ndindex(START.shape):
        up, down = START.copy(), START.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        slope = (expected(up) - expected(down)) / 2e-5
        assert gradient(POLICY)[index] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("credit", [uniform, Discounted(1.0), turn], ids=["uniform", "discounted", "turn"])
def test_the_mean_gradient_is_the_true_one(credit):
    assert distance(estimates(credit)) < 4.5
