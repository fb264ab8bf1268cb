"""The mean of many simulated gradients is the true one, which is known: a sum over all stories of a game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from lightning_core.credit.base import Baseline, Comparison, Credit, add_up, assign
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.tabular import Tabular, state
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.records.types import Trajectory
from tests.credit.game import POLICY, START, Floats, gradient, play, probabilities, score, stories, total
from tests.credit.telling import Said, tell

GROUPS, SIZE = 3000, 4


def estimates(credit: Credit, baseline: Baseline = "leave_one_out", *, blind: bool = False) -> Floats:
    """(GROUPS, state, action) the gradient as estimated from each group; `blind`: all is shown alike."""
    random = Random(0)
    found = np.zeros((GROUPS, *POLICY.shape))
    for number in range(GROUPS):
        played = [play(POLICY, random, f"g{number}", i) for i in range(SIZE)]
        group = [unseeing(trajectory) if blind else trajectory for trajectory, _ in played]
        credited, _ = assign(group, credit, baseline, "none")
        for trajectory, (_, story) in zip(credited, played, strict=False):
            for t, at in zip(trajectory.transitions, story, strict=True):
                if t.advantage is not None:
                    found[number] += t.advantage * score(POLICY, at) / SIZE
    return found


def unseeing(trajectory: Trajectory) -> Trajectory:
    """The trajectory with one observation for every state."""
    return replace(trajectory, transitions=tuple(replace(t, observation="x") for t in trajectory.transitions))


def distance(found: Floats, wanted: Floats | None = None) -> float:
    """How many standard errors the mean estimate is off the true gradient, where it is furthest off."""
    error = np.maximum(found.std(0) / np.sqrt(len(found)), 1e-9)
    wanted = gradient(POLICY) if wanted is None else wanted
    return float((np.abs(found.mean(0) - wanted) / error).max())


def test_the_true_gradient_is_the_slope_of_the_expected_return():
    # against a difference quotient, so that the yardstick itself is checked
    def expected(logits: Floats) -> float:
        return sum(p * total(story, final) for p, story, final in stories(probabilities(logits)))

    for index in np.ndindex(START.shape):
        up, down = START.copy(), START.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        slope = (expected(up) - expected(down)) / 2e-5
        assert gradient(POLICY)[index] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize(
    "credit",
    [uniform, Discounted(1.0), turn, state, Tabular()],
    ids=["uniform", "discounted", "turn", "state", "tabular"],
)
def test_the_mean_gradient_is_the_true_one(credit):
    # tabular needs that what is shown says what matters, which here is so but for the last turn
    assert distance(estimates(credit)) < 4.5


def test_the_mean_gradient_of_per_agent_is_the_true_one_times_the_chance_of_a_comparison():
    # the fixer, of states 1 and 2, acts in some stories; alone in the group it is compared with nobody
    acts = sum(p for p, story, _ in stories(POLICY) if any(turn.state for turn in story))
    compared = np.array([1.0, *[1 - (1 - acts) ** (SIZE - 1)] * 2])[:, None]
    assert compared.min() < 0.9
    assert distance(estimates(per_agent), gradient(POLICY) * compared) < 4.5
    assert distance(estimates(per_agent)) > 5


def naive_turn(group: Sequence[Trajectory]) -> list[Comparison]:
    """`turn` without the comparison of a rollout that is alone at its turn."""
    return [each for each in turn(group) if each.credited is None]


@pytest.mark.parametrize(
    ("credit", "baseline"),
    [(naive_turn, "leave_one_out"), (turn, "mean"), (uniform, "mean"), (Discounted(0.5), "leave_one_out")],
    ids=["no fall-back", "itself in its baseline", "itself in its baseline, whole", "discounted"],
)
def test_what_is_biased_is_found_out(credit, baseline):
    assert distance(estimates(credit, baseline)) > 6


def test_state_is_unbiased_also_if_observations_hide_everything():
    assert distance(estimates(state, blind=True)) < 4.5


def hidden_plans(credit: Credit) -> Floats:
    """(GROUPS, call) slopes in a game of two calls with two replies each, all equally likely: 1 if both are
    right, and the second call is shown the same after either plan. The true slopes are 1/2 * 1/2 * 1/2."""
    random = Random(0)
    found = np.zeros((GROUPS, 2))
    for number in range(GROUPS):
        replies = [(random.randrange(2), random.randrange(2)) for _ in range(SIZE)]
        group = [
            tell(
                place,
                float(plan == deed == 1),
                Said("planner", shown="task", reply=plan),
                Said("doer", shown="a plan is made", reply=deed),
            )
            for place, (plan, deed) in enumerate(replies)
        ]
        advantages = add_up(group, credit(group), "leave_one_out", "none")
        for (name, call, _), advantage in advantages.items():
            chosen = replies[int(name[1:])][int(call[1:])]
            found[number, int(call[1:])] += advantage * (chosen - 0.5) / SIZE
    return found


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
def test_what_the_next_state_hides_is_learnt_by_the_share_of_the_own_return_alone(own):
    found = hidden_plans(Tabular(own=own))
    assert distance(found, np.array([own / 8, 1 / 8])) < 4.5
    biased = distance(found, np.array([1 / 8, 1 / 8])) > 6
    assert biased == (own < 1)
