"""Each credit method against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lightning_core.credit.anchor import Anchor
from lightning_core.credit.base import Baseline, Credit, add_up
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.gae import Gae
from lightning_core.credit.hierarchical import Hierarchical
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.records.types import Trajectory
from tests.credit.telling import Said, tell


def plain(
    method: Credit, group: list[Trajectory], baseline: Baseline = "leave_one_out"
) -> dict[tuple[str, str], float]:
    """Advantages without a scale, by rollout and call."""
    return {(key[0], key[1]): value for key, value in add_up(group, method(group), baseline, "none").items()}


def test_discounted_compares_an_agent_s_returns_to_go_turn_by_turn():
    # r0: c0 = 1/2, c1 = 1; r1: c0 = 0; r2: c0 = -1/2, c1 = -1
    group = [
        tell(0, 1.0, Said(), Said(after=0)),
        tell(1, 0.0, Said()),
        tell(2, -1.0, Said(), Said(after=0)),
    ]
    assert plain(Discounted(0.5), group) == {
        ("r0", "c0"): 1 / 2 - (0 - 1 / 2) / 2,
        ("r1", "c0"): 0 - (1 / 2 - 1 / 2) / 2,
        ("r2", "c0"): -1 / 2 - (1 / 2 + 0) / 2,
        ("r0", "c1"): 2.0,
        ("r2", "c1"): -2.0,
    }


def test_discounted_compares_an_agent_that_acted_once_in_the_group_with_the_other_rollouts():
    # v acted in r0 only: 1 against the mean 1/4 of the other rollouts' returns 0 and 1/2
    group = [tell(0, 1.0, Said(), Said("v")), tell(1, 0.0, Said()), tell(2, 0.5, Said())]
    assert plain(Discounted(1.0), group)["r0", "c1"] == 3 / 4


def test_turn_compares_equal_turns_over_the_rollouts_still_alive():
    # turn 0: returns 1, 0, 1/2; turn 1: 1 and 0; turn 2: r0 alone, against the whole returns 0 and 1/2
    group = [
        tell(0, 1.0, Said(), Said(after=0), Said(after=1)),
        tell(1, 0.0, Said(), Said(after=0)),
        tell(2, 0.5, Said()),
    ]
    assert plain(turn, group) == {
        ("r0", "c0"): 1 - 1 / 4,
        ("r1", "c0"): 0 - 3 / 4,
        ("r2", "c0"): 0.0,
        ("r0", "c1"): 1.0,
        ("r1", "c1"): -1.0,
        ("r0", "c2"): 1 - 1 / 4,
    }


def test_turn_counts_the_calls_of_each_agent_by_itself_and_choices_as_one_turn():
    group = [
        tell(0, 1.0, Said("v"), Said("w", choices=2), Said("w")),
        tell(1, 0.0, Said("w"), Said("w"), Said("v")),
    ]
    found = plain(turn, group)
    assert found == {(f"r{r}", f"c{c}"): 1.0 - 2 * r for r in (0, 1) for c in (0, 1, 2)}


def test_turn_forgets_what_was_earned_before():
    # at turn 1 both have only the final reward before them, which is the same
    group = [tell(0, 1.0, Said(reward=5), Said(after=0)), tell(1, 1.0, Said(), Said(after=0))]
    assert plain(turn, group) == {("r0", "c0"): 5.0, ("r1", "c0"): -5.0}


def test_anchor_adds_a_comparison_among_calls_that_were_shown_the_same():
    # whole returns: 1, 0 and 0, against the others' means 0, 1/2 and 1/2.
    # shown "x": r0 at c0 (discounted 1/2) and at c1 (1), mean 3/4; r1 at c0 (0). r2 is shown "y" alone
    group = [
        tell(0, 1.0, Said(shown="x"), Said(after=0, shown="x")),
        tell(1, 0.0, Said(shown="x")),
        tell(2, 0.0, Said(shown="y")),
    ]
    assert plain(Anchor(weight=2.0, discount=0.5), group) == {
        ("r0", "c0"): 1 + 2 * (1 / 2),
        ("r0", "c1"): 1 + 2 * 1,
        ("r1", "c0"): -1 / 2 + 2 * (-3 / 4),
        ("r2", "c0"): -1 / 2,
    }


def test_anchor_tells_agents_apart_and_leaves_out_what_is_not_known():
    group = [tell(0, 1.0, Said("v", shown="x"), Said()), tell(1, 0.0, Said("w", shown="x"), Said())]
    assert plain(Anchor(weight=1.0), group) == {
        (f"r{r}", f"c{c}"): 1.0 - 2 * r for r in (0, 1) for c in (0, 1)
    }


def test_gae_by_hand():
    # gamma 1/2, lambda 1/2. Last turn: delta = 4 + 8 - 6 = 6. First: delta = 1 + 6/2 - 2 = 2, A = 2 + 6/4
    group = [tell(0, 8.0, Said(reward=1, value=2.0), Said(after=0, reward=4, value=6.0))]
    [comparison] = Gae(discount=0.5, lam=0.5)(group)
    assert comparison.peers == ({("r0", "c0", 0): 3.5, ("r0", "c1", 0): 6.0},)
    assert comparison.targets == {("r0", "c0", 0): 5.5, ("r0", "c1", 0): 12.0}
    assert not comparison.baseline


def test_gae_with_lambda_and_discount_1_is_the_return_less_the_value():
    calls = [
        Said(reward=1, value=2.0),
        Said(after=0, reward=4, value=6.0),
        Said(after=1, reward=3, value=9.0),
    ]
    [comparison] = Gae(discount=1.0, lam=1.0)([tell(0, 8.0, *calls)])
    assert list(comparison.peers[0].values()) == [16 - 2, 15 - 6, 11 - 9]
    assert list(comparison.targets.values()) == [16, 15, 11]


def test_gae_takes_the_mean_over_branches_that_part():
    # ends: c1 8 - 6 = 2, c2 8 + 4 - 2 = 10; before: delta = (6 + 2)/2 - 1 = 3, A = 3 + (2 + 10)/2
    fork = tell(0, 8.0, Said(value=1.0), Said(after=0, value=6.0), Said(after=0, reward=4, value=2.0))
    [comparison] = Gae(discount=1.0, lam=1.0)([fork])
    assert list(comparison.peers[0].values()) == [9.0, 2.0, 10.0]


def test_gae_counts_what_one_of_two_branches_earns_half_for_the_call_before_and_turn_counts_it_whole():
    # r0 forks after c0, and one of its branches earns 4; all values 0, so advantages are returns
    fork = tell(0, 8.0, Said(value=0.0), Said(after=0, value=0.0), Said(after=0, reward=4, value=0.0))
    [comparison] = Gae(discount=1.0, lam=1.0)([fork])
    assert list(comparison.peers[0].values()) == [8 + 4 / 2, 8.0, 8 + 4]
    [first, *_] = turn([fork, tell(1, 0.0, Said())])
    assert first.peers[0] == {("r0", "c0", 0): 8 + 4}


def test_gae_passes_through_turns_without_a_value():
    # the tool turn c1 earned 4 and has no value: c0 sees 1 + (4 + 6) - 2 and then 8 - 6
    calls = [
        Said(reward=1, value=2.0),
        Said("tool", after=0, reward=4, trained=False),
        Said(after=1, value=6.0),
    ]
    [comparison] = Gae(discount=1.0, lam=1.0)([tell(0, 8.0, *calls)])
    assert comparison.peers[0] == {("r0", "c0", 0): 9.0 + 2.0, ("r0", "c2", 0): 2.0}
    assert comparison.targets.keys() == comparison.peers[0].keys()


@pytest.mark.parametrize("trained", [True, False])
def test_gae_gives_each_agent_its_own_final_reward_though_another_one_spoke_last(trained: bool):
    # w: deltas 1 + (4 + 6) - 2 = 9 and 8 - 6 = 2, with the turn of v between and another one after
    calls = [
        Said("w", reward=1, value=2.0),
        Said("v", after=0, reward=4, value=1.0 if trained else None, trained=trained),
        Said("w", after=1, value=6.0),
        Said("v", after=2, value=3.0 if trained else None, trained=trained),
    ]
    [comparison] = Gae(discount=1.0, lam=1.0)([tell(0, 0.0, *calls, agent_rewards={"w": 8.0, "v": -1.0})])
    own = {("r0", "c0", 0): 13.0, ("r0", "c2", 0): 8.0}
    others = {("r0", "c1", 0): 3.0, ("r0", "c3", 0): -1.0} if trained else {}
    assert comparison.targets == own | others
    assert comparison.peers[0]["r0", "c0", 0] == 9.0 + 2.0


def test_gae_says_which_call_has_no_value():
    with pytest.raises(TrainingError, match=r"'c1' of rollout 'r0' has no value"):
        Gae()([tell(0, 1.0, Said(value=0.5), Said(after=0))])


def test_hierarchical_compares_an_agent_with_itself_within_a_rollout():
    # r0: w earned 1 and 0 in two branches, so 2 and 1 to go, 1/2 apart from the other one's: +1 and -1;
    # across rollouts: whole returns 2 and 0
    group = [tell(0, 1.0, Said(reward=1), Said()), tell(1, 0.0, Said(), Said("v"))]
    assert plain(Hierarchical(weight=0.25), group) == {
        ("r0", "c0"): 2 + 0.25,
        ("r0", "c1"): 2 - 0.25,
        ("r1", "c0"): -2.0,
    }


def test_hierarchical_is_per_agent_if_all_calls_of_a_rollout_earned_the_same():
    group = [tell(0, 1.0, Said(), Said(), Said()), tell(1, 0.0, Said())]
    assert plain(Hierarchical(), group) == {**{("r0", f"c{i}"): 1.0 for i in range(3)}, ("r1", "c0"): -1.0}


def test_advantages_without_a_baseline_are_scaled_by_their_distance_from_0():
    # 3 and -1 and -1 in one rollout, 1 in the other: mean squares 11/3 and 1, so the unit is sqrt(7/3)
    calls = [Said(value=v) for v in (1.0, 5.0, 5.0)]
    group = [tell(0, 4.0, *calls), tell(1, 4.0, Said(value=3.0))]
    scaled = add_up(group, Gae()(group), "none", "std")
    assert list(scaled.values()) == pytest.approx([v / math.sqrt(7 / 3) for v in (3, -1, -1, 1)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Discounted(1.5),
        lambda: Discounted(-0.1),
        lambda: Anchor(weight=-1.0),
        lambda: Anchor(discount=2.0),
        lambda: Hierarchical(weight=-0.5),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(make):
    with pytest.raises(ConfigError, match=r"must|can't use"):
        make()


def test_a_rollout_without_a_trained_call_is_compared_with_nobody():
    group = [tell(0, 1.0, Said()), tell(1, 0.0, Said()), replace(tell(2, 5.0), transitions=())]
    for method in (Discounted(1.0), turn, Hierarchical()):
        assert plain(method, group) == {("r0", "c0"): 1.0, ("r1", "c0"): -1.0}
