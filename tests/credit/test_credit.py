"""Credit methods against numbers worked out by hand, and the laws that hold for all of them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.credit.base import Credit, add_up, assign
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.records.types import Trajectory, Transition

METHODS = [uniform, per_agent]


def advantages_of(method: Credit, group: list[Trajectory]) -> dict[tuple[str, str, int], float]:
    return add_up(group, method(group))


def rollout(
    number: int, reward: float, *agents: str, untrained: tuple[str, ...] = (), group: str = "g"
) -> Trajectory:
    transitions = tuple(
        Transition(
            rollout_id=f"r{number}",
            call_id=f"c{position}",
            choice=0,
            agent=agent,
            trained=agent not in untrained,
            prompt_ids=[1, 2],
            completion_ids=[3],
            logprobs=[-0.1],
            policy_version=0,
        )
        for position, agent in enumerate(agents)
    )
    return Trajectory(
        rollout_id=f"r{number}", group_id=group, task_id="t", reward=reward, transitions=transitions
    )


def test_uniform_gives_each_call_the_normalised_return_of_its_rollout():
    # returns 1, 0, 0, 0: mean 1/4, population std sqrt(3)/4, so 3/4 is sqrt(3) stds and -1/4 is -1/sqrt(3)
    group = [rollout(0, 1.0, "w", "w", "w"), *(rollout(i, 0.0, "w") for i in (1, 2, 3))]
    advantages = advantages_of(uniform, group)
    assert [advantages["r0", f"c{i}", 0] for i in range(3)] == pytest.approx([math.sqrt(3)] * 3)
    assert advantages["r1", "c0", 0] == pytest.approx(-1 / math.sqrt(3))


def test_per_agent_compares_an_agent_only_with_itself():
    # the rewriter acted in rollouts 2 and 3 (returns 1 and 0): mean 1/2, std 1/2, advantages +1 and -1;
    # the writer acted in all four (returns 1, 1, 1, 0): mean 3/4, std sqrt(3)/4
    group = [
        rollout(0, 1.0, "write"),
        rollout(1, 1.0, "write"),
        rollout(2, 1.0, "write", "rewrite"),
        rollout(3, 0.0, "write", "rewrite", "rewrite"),
    ]
    advantages = advantages_of(per_agent, group)
    assert advantages["r2", "c1", 0] == pytest.approx(1.0)
    assert advantages["r3", "c1", 0] == pytest.approx(-1.0)
    assert advantages["r3", "c2", 0] == pytest.approx(-1.0)
    assert advantages["r0", "c0", 0] == pytest.approx(1 / math.sqrt(3))
    assert advantages["r3", "c0", 0] == pytest.approx(-math.sqrt(3))


def test_an_agent_without_a_comparison_gets_no_advantage():
    advantages = advantages_of(per_agent, [rollout(0, 1.0, "write", "rewrite"), rollout(1, 0.0, "write")])
    assert set(advantages) == {("r0", "c0", 0), ("r1", "c0", 0)}


def test_intermediate_rewards_count_towards_the_return():
    plain, helped = rollout(0, 0.0, "w"), rollout(1, 0.0, "w")
    better = replace(helped, intermediate=0.5)
    # returns 0 and 1/2, a quarter from their mean each; the final rewards are equal, so the unit is 1/2
    assert advantages_of(uniform, [plain, better]) == pytest.approx(
        {("r0", "c0", 0): -0.5, ("r1", "c0", 0): 0.5}
    )


@pytest.mark.parametrize("method", METHODS)
def test_groups_without_variance_are_dropped_and_counted(method):
    same = [rollout(i, 0.7, "w", group="same") for i in range(3)]
    mixed = [rollout(i + 3, float(i), "w", group="mixed") for i in range(3)]
    kept, report = assign([*same, *mixed], method)
    assert [trajectory.group_id for trajectory in kept] == ["mixed"] * 3
    assert (report.groups, report.zero_variance_groups, dict(report.transitions)) == (2, 1, {"w": 3})


@pytest.mark.parametrize("method", METHODS)
def test_an_untrained_agent_has_no_advantage_and_is_in_no_baseline(method):
    trained_only = [rollout(0, 1.0, "w"), rollout(1, 0.0, "w")]
    with_checker = [
        rollout(0, 1.0, "w", "check", untrained=("check",)),
        rollout(1, 0.0, "w", "check", "check", untrained=("check",)),
        rollout(2, 0.0, "check", untrained=("check",)),
    ]
    assert advantages_of(method, with_checker) == advantages_of(method, trained_only)
    kept, _ = assign(with_checker, method)
    assert all(
        t.advantage is None for trajectory in kept for t in trajectory.transitions if t.agent == "check"
    )


rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


@pytest.mark.parametrize("method", METHODS)
@given(rewards=rewards, data=st.data())
def test_a_rollout_counts_once_whatever_its_number_of_calls(method, rewards, data):
    calls = data.draw(st.lists(st.integers(1, 6), min_size=len(rewards), max_size=len(rewards)))
    once = advantages_of(method, [rollout(i, r, "w") for i, r in enumerate(rewards)])
    often = advantages_of(
        method, [rollout(i, r, *["w"] * n) for i, (r, n) in enumerate(zip(rewards, calls, strict=True))]
    )
    assert {key: often[key] for key in once} == pytest.approx(once)
    assert len(often) == (sum(calls) if once else 0)


@pytest.mark.parametrize("method", METHODS)
@given(rewards=rewards, shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_advantages_do_not_depend_on_the_reward_s_origin_or_unit(method, rewards, shift, scale):
    if max(rewards) - min(rewards) < 0.01:
        return
    plain = advantages_of(method, [rollout(i, r, "w") for i, r in enumerate(rewards)])
    moved = advantages_of(method, [rollout(i, r * scale + shift, "w") for i, r in enumerate(rewards)])
    assert moved == pytest.approx(plain, abs=1e-3)
    assert sum(plain.values()) == pytest.approx(0, abs=1e-6)


def test_every_transition_has_its_own_key():
    group = [rollout(0, 1.0, "a", "a"), rollout(1, 0.0, "a")]
    assert len({t.key for trajectory in group for t in trajectory.transitions}) == 3


def test_scale_mean_divides_by_the_success_rate():
    # returns 1, 0, 0, 0 have the mean 1/4: 3/4 becomes 3, and -1/4 becomes -1
    group = [rollout(0, 1.0, "w", "w"), *(rollout(i, 0.0, "w") for i in (1, 2, 3))]
    advantages = add_up(group, uniform(group), "mean", "mean")
    assert advantages == pytest.approx(
        {("r0", "c0", 0): 3, ("r0", "c1", 0): 3} | {(f"r{i}", "c0", 0): -1 for i in (1, 2, 3)}
    )


@pytest.mark.parametrize("successes", range(1, 8))
def test_scale_mean_makes_the_gradient_of_the_likelihood_of_success(successes):
    # Tajwar et al., arXiv 2602.02710: the mean score of the successes less the mean score of all
    group = [rollout(i, float(i < successes), "w") for i in range(8)]
    advantages = add_up(group, uniform(group), "mean", "mean")
    for i in range(8):
        assert advantages[f"r{i}", "c0", 0] / 8 == pytest.approx((i < successes) / successes - 1 / 8)


def test_scale_mean_counts_no_less_than_one_success():
    # returns 0, 0, -1, -1: their mean is below 0, so the unit is 1/4
    group = [rollout(i, float(-(i // 2)), "w") for i in range(4)]
    advantages = add_up(group, uniform(group), "mean", "mean")
    assert [advantages[f"r{i}", "c0", 0] for i in range(4)] == pytest.approx([2, 2, -2, -2])
