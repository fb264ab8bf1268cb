"""The parts of final and intermediate rewards in an advantage, with numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lightning_core.algorithms.dpo import pair_up
from lightning_core.algorithms.sft import Best
from lightning_core.credit.base import Baseline, Finals, Scale, add_up, assign, only_finals
from lightning_core.credit.discounted import turn
from lightning_core.credit.hierarchical import Hierarchical
from lightning_core.credit.tabular import state
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.records.types import Trajectory
from tests.credit.telling import Said, tell

SMALL = -0.05


def group(final: float = 0.0, size: int = 4) -> list[Trajectory]:
    """Rollouts that all end alike; the first had a little taken away for its only call."""
    return [tell(i, final, Said(shown="x", reward=SMALL if i == 0 else 0.0)) for i in range(size)]


@pytest.mark.parametrize("final", [0.0, 1.0])
@pytest.mark.parametrize("method", [uniform, per_agent, turn])
def test_a_small_reward_stays_small_where_all_final_rewards_are_equal(method, final):
    # the distances from the mean are -3/4 and 1/4 of 0.05; a success among four would have the unit sqrt(3)/4
    advantages = add_up(group(final), method(group(final)))
    unit = math.sqrt(3) / 4
    assert advantages == pytest.approx(
        {("r0", "c0", 0): 0.75 * SMALL / unit, **{(f"r{i}", "c0", 0): -SMALL / 4 / unit for i in (1, 2, 3)}}
    )


def test_it_is_5_percent_of_what_a_success_is_worth_there():
    lone = [tell(i, float(i == 0), Said()) for i in range(4)]
    success = add_up(lone, uniform(lone))["r0", "c0", 0]
    assert success == pytest.approx(math.sqrt(3))
    assert add_up(group(), uniform(group()))["r0", "c0", 0] == pytest.approx(SMALL * success)


def test_where_a_final_reward_differs_the_deviation_is_what_it_was():
    # returns -0.05, 0, 0, 1
    mixed = [*group()[:3], tell(3, 1.0, Said())]
    mean = 0.95 / 4
    unit = math.sqrt((0.05**2 + 1) / 4 - mean**2)
    found = add_up(mixed, uniform(mixed))
    assert found["r3", "c0", 0] == pytest.approx((1 - mean) / unit)


def test_intermediate_rewards_as_large_as_final_ones_are_divided_by_their_own_deviation():
    # returns 1 and -1: their deviation 1 is more than the least, 1/2
    rollouts = [tell(0, 0.0, Said(reward=1.0)), tell(1, 0.0, Said(reward=-1.0))]
    assert add_up(rollouts, uniform(rollouts)) == {("r0", "c0", 0): 1.0, ("r1", "c0", 0): -1.0}


def test_a_method_with_a_baseline_of_its_own_is_scaled_the_same_way():
    # the first: -0.05 less 0; the others: 0 less the mean -0.05 / 3 of the others'. Deviation about 0
    # sqrt((1 + 3 / 9) / 4) * 0.05, which is less than sqrt(3) / 4
    found = add_up(group(), state(group()), "none")
    assert found["r0", "c0", 0] == pytest.approx(SMALL / (math.sqrt(3) / 4))


def test_an_agent_s_own_final_rewards_are_what_counts_for_it():
    # for w all end with 0, and the rollouts' own reward of 1 and 0 is v's
    both = [
        replace(tell(0, 1.0, Said("w", reward=SMALL), Said("v")), agent_rewards={"w": 0.0}),
        replace(tell(1, 0.0, Said("w"), Said("v")), agent_rewards={"w": 0.0}),
    ]
    found = add_up(both, per_agent(both))
    assert found["r0", "c0", 0] == pytest.approx(SMALL / 2 / (1 / 2))
    assert found["r0", "c1", 0] == pytest.approx(1.0)


def test_the_calls_of_one_rollout_end_alike():
    # within: w's calls earned -0.05 and 0, each 0.025 from the mean, least unit 1/2; across: nothing differs
    alike = [tell(i, 1.0, Said(reward=SMALL), Said()) for i in range(2)]
    found = add_up(alike, Hierarchical(weight=1.0)(alike))
    assert found["r0", "c0", 0] == pytest.approx(SMALL / 2 / (1 / 2))
    assert found["r0", "c1", 0] == pytest.approx(-SMALL / 2 / (1 / 2))


def advantages(
    batch: list[Trajectory], baseline: Baseline, scale: Scale = "batch"
) -> dict[str, float | None]:
    credited, _ = assign(batch, uniform, baseline, scale)
    return {t.rollout_id: t.advantage for each in credited for t in each.transitions}


def test_a_batch_in_which_all_end_alike_has_the_same_least_unit():
    # as above, but each rollout its own group: -0.05, 0, 0, 0 over the batch
    batch = [replace(each, group_id=f"g{i}") for i, each in enumerate(group())]
    assert advantages(batch, "none")["r0"] == pytest.approx(0.75 * SMALL / (math.sqrt(3) / 4))
    batch[3] = replace(batch[3], reward=1.0)  # the mean is 0.95 / 4 now, the mean square 1.0025 / 4
    unit = math.sqrt(1.0025 / 4 - (0.95 / 4) ** 2)
    assert advantages(batch, "none")["r3"] == pytest.approx((1 - 0.95 / 4) / unit)


def test_groups_that_are_compared_by_themselves_may_end_differently_from_one_another():
    # group a ends with 0, group b with 1; less their means: -0.025, 0.025 and twice 0 are left, all n = 2
    batch = [replace(each, group_id="a") for each in group(0.0, 2)]
    batch += [replace(tell(i, 1.0, Said(reward=SMALL * (i - 2))), group_id="b") for i in (2, 3)]
    found = advantages(batch, "mean")
    assert found["r0"] == pytest.approx(SMALL / 2 / (math.sqrt(3) / 4))
    assert found["r3"] == pytest.approx(SMALL / 2 / (math.sqrt(3) / 4))


def test_finals_are_equal_for_each_agent_by_itself():
    first = replace(tell(0, 1.0, Said("w"), Said("v")), agent_rewards={"v": 0.5})
    second = replace(tell(1, 1.0, Said("w"), Said("v")), agent_rewards={"v": 0.5})
    finals = Finals([first, second])
    keys = [t.key for each in (first, second) for t in each.transitions]
    assert finals.equal(keys)
    assert not Finals([first, replace(second, agent_rewards={"v": 0.0})]).equal(keys)
    # one that is known by its rollout alone, as in `turn`
    other = Finals([first, replace(second, reward=0.0)])
    assert not other.equal([first.transitions[0].key, ("r1", "", 0)])


def test_only_finals_leaves_everything_but_intermediate_rewards():
    whole = tell(0, 1.0, Said(reward=0.5), Said(reward=-1.0))
    bare = only_finals(whole)
    assert bare == tell(0, 1.0, Said(), Said())


def marked(batch: list[Trajectory], method: Best) -> set[str]:
    credited, _ = assign(batch, method, "none", "none")
    return {t.rollout_id for each in credited for t in each.transitions if t.advantage is not None}


@pytest.mark.parametrize("final", [0.0, 1.0])
def test_nothing_is_imitated_or_paired_where_all_end_alike(final):
    assert marked(group(final), Best()) == set()
    assert pair_up(group(final)) == []


def test_among_successes_the_one_with_the_best_return_is_imitated():
    batch = [
        tell(0, 1.0, Said(reward=-0.2)),
        tell(1, 1.0, Said(reward=-0.1)),
        tell(2, 0.0, Said()),
        tell(3, 1.0, Said(reward=-0.1)),
    ]
    assert marked(batch, Best()) == {"r1", "r3"}


def test_a_better_end_counts_for_more_than_anything_on_the_way():
    # without a bound intermediate rewards may be larger than the final ones; they still do not decide
    batch = [tell(0, 1.0, Said(reward=-3.0)), tell(1, 0.0, Said(reward=3.0))]
    assert marked(batch, Best()) == {"r0"}
    [pair] = pair_up(batch)
    assert (pair.chosen[0][0], pair.rejected[0][0]) == ("r0", "r1")


def test_intermediate_rewards_say_who_of_equals_is_paired_first():
    batch = [
        tell(0, 1.0, Said(reward=-0.1)),
        tell(1, 1.0, Said()),
        tell(2, 0.0, Said()),
        tell(3, 0.0, Said(reward=-0.2)),
        tell(4, 1.0, Said(reward=-0.3)),
    ]
    names = [(pair.chosen[0][0], pair.rejected[0][0]) for pair in pair_up(batch)]
    assert names == [("r1", "r3"), ("r0", "r2")]


def test_a_margin_is_one_of_final_rewards():
    batch = [tell(0, 0.5, Said()), tell(1, 0.0, Said(reward=-1.0))]
    assert pair_up(batch, margin=0.5) == []
    assert len(pair_up(batch, margin=0.4)) == 1
