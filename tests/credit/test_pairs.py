"""Who is paired with whom, and which rollouts are kept to be imitated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.algorithms.dpo import Pairs, pair_up
from lightning_core.algorithms.sft import Best, everything
from lightning_core.credit.base import assign
from lightning_core.records.types import Key, Trajectory, Transition


def rollout(number: int, reward: float, *agents: str, group: str = "g", **changes) -> Trajectory:
    transitions = tuple(
        Transition(f"r{number}", f"c{i}", 0, agent, agent != "checker", [1, 2], [3], [-0.1], 0)
        for i, agent in enumerate(agents)
    )
    return Trajectory(f"r{number}", group, "t", reward, transitions, **changes)


def found(trajectories: list[Trajectory], margin: float = 0.0) -> list[tuple[set[str], set[str]]]:
    """Each pair as (rollout + call of the better side, of the worse side)."""

    def names(keys: tuple[Key, ...]) -> set[str]:
        return {key[0] + key[1] for key in keys}

    return [(names(pair.chosen), names(pair.rejected)) for pair in pair_up(trajectories, margin)]


def test_the_best_is_paired_with_the_worst_and_the_second_best_with_the_second_worst():
    returns = [0.5, 3.0, 1.0, -2.0, 2.0]
    group = [rollout(i, value, "a") for i, value in enumerate(returns)]
    assert found(group) == [({"r1c0"}, {"r3c0"}), ({"r4c0"}, {"r0c0"})]


def test_of_rewards_of_0_and_1_there_are_as_many_pairs_as_the_rarer_one():
    group = [rollout(i, value, "a") for i, value in enumerate([0, 0, 1, 0, 1, 0])]
    assert found(group) == [({"r2c0"}, {"r5c0"}), ({"r4c0"}, {"r3c0"})]
    assert found([rollout(i, 1.0, "a") for i in range(4)]) == []


def test_a_margin_leaves_close_returns_unpaired():
    group = [rollout(i, value, "a") for i, value in enumerate([0.0, 1.0, 0.25, 0.5])]
    assert found(group, margin=0.25) == [({"r1c0"}, {"r0c0"})]


def test_an_agent_is_paired_with_itself_over_the_rollouts_in_which_it_acted():
    group = [
        rollout(0, 1.0, "write", "checker"),
        rollout(1, 0.0, "write", "rewrite", "checker", "rewrite"),
        rollout(2, 1.0, "write", "rewrite"),
    ]
    assert found(group) == [({"r2c1"}, {"r1c1", "r1c3"}), ({"r0c0"}, {"r1c0"})]


def test_an_agent_s_own_reward_and_the_intermediate_ones_order_its_rollouts():
    group = [
        rollout(0, 1.0, "a", intermediate=-0.2),
        rollout(1, 1.0, "a"),
        rollout(2, 0.0, "a", agent_rewards={"a": 2.0}),
    ]
    assert found(group) == [({"r2c0"}, {"r0c0"})]


def test_a_call_without_tokens_is_in_no_pair():
    silent = (Transition("r0", "c0", 0, "a", True, [1], [], [], 0),)
    assert found([Trajectory("r0", "g", "t", 1.0, silent), rollout(1, 0.0, "a")]) == []


rollouts = st.builds(
    rollout,
    st.none(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.just("a"),
    group=st.sampled_from(["g", "h", "k"]),
)


@given(st.lists(rollouts, max_size=20))
def test_pairs_are_within_a_group_and_a_rollout_is_in_at_most_one(drawn):
    batch = [rollout(i, each.reward, "a", group=each.group_id) for i, each in enumerate(drawn)]
    by_id = {each.rollout_id: each for each in batch}
    members = []
    for pair in pair_up(batch):
        (chosen,), (rejected,) = pair.chosen, pair.rejected
        assert by_id[chosen[0]].group_id == by_id[rejected[0]].group_id
        assert by_id[chosen[0]].reward > by_id[rejected[0]].reward
        members += [chosen, rejected]
    assert len(members) == len(set(members))


def test_the_credit_method_marks_the_sides_of_every_pair():
    batch = [rollout(i, value, "a") for i, value in enumerate([0.5, 1.0, 0.0])]
    batch += [rollout(i, 1.0, "a", group="flat") for i in (3, 4)]
    credited, report = assign(batch, Pairs(), "none", "none")
    assert {t.key[0]: t.advantage for each in credited for t in each.transitions} == {
        "r0": None,
        "r1": 1.0,
        "r2": -1.0,
    }
    assert (report.groups, report.zero_variance_groups) == (2, 1)


def kept(batch: list[Trajectory], credit) -> set[str]:
    credited, _ = assign(batch, credit, "none", "none")
    marked = {t.key[0] + t.key[1]: t.advantage for each in credited for t in each.transitions}
    assert set(marked.values()) <= {None, 1.0}
    return {name for name, advantage in marked.items() if advantage is not None}


def test_the_best_of_each_group_are_kept_unless_all_are_equal():
    batch = [rollout(i, value, "a") for i, value in enumerate([0.0, 1.0, 0.5, 1.0])]
    batch += [rollout(i, 1.0, "a", group="flat") for i in (4, 5)]
    assert kept(batch, Best()) == {"r1c0", "r3c0"}


def test_with_a_threshold_all_above_it_are_kept_whatever_the_others_did():
    batch = [rollout(i, value, "a") for i, value in enumerate([0.0, 1.0, 0.5])]
    batch += [rollout(i, 1.0, "a", group="flat") for i in (3, 4)]
    batch += [rollout(i, 0.1, "a", group="bad") for i in (5, 6)]
    assert kept(batch, Best(least_return=0.5)) == {"r1c0", "r2c0", "r3c0", "r4c0"}


def test_the_best_of_an_agent_are_among_the_rollouts_in_which_it_acted():
    batch = [
        rollout(0, 1.0, "write", "checker"),
        rollout(1, 0.5, "write", "rewrite"),
        rollout(2, 0.0, "write", "rewrite"),
    ]
    assert kept(batch, Best()) == {"r0c0", "r1c1"}


@pytest.mark.parametrize("reward", [0.0, float("nan")])
def test_of_demonstrations_everything_is_kept(reward):
    assert kept([rollout(0, reward, "a", group="d0"), rollout(1, reward, "b", group="d1")], everything) == {
        "r0c0",
        "r1c0",
    }
