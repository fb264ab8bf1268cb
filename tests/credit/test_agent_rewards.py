"""Final rewards of single agents in credit, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_core.credit.base import Credit
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.experience.returns import total_return
from lightning_core.records.types import Trajectory
from tests.credit.test_credit import advantages_of, rollout


def group() -> list[Trajectory]:
    """The team did well in r0 only, the writer itself in r1 only; the checker has no reward of its own."""
    first = replace(rollout(0, 1.0, "writer", "checker"), agent_rewards={"writer": 0.0})
    second = replace(rollout(1, 0.0, "writer", "checker"), agent_rewards={"writer": 3.0}, intermediate=-1.0)
    return [first, second]


def test_an_agent_s_own_final_reward_stands_in_place_of_the_rollout_s() -> None:
    first, second = group()
    assert [total_return(first, name) for name in ("writer", "checker")] == [0.0, 1.0]
    assert [total_return(second, name) for name in ("writer", "checker")] == [2.0, -1.0]


@pytest.mark.parametrize("method", [per_agent, uniform])
def test_credit_goes_by_the_agent_s_own_return(method: Credit) -> None:
    # writer: 0 and 2, mean 1, deviation 1; checker: 1 and -1, mean 0, deviation 1
    found = advantages_of(method, group())
    assert {(rollout_id, call): value for (rollout_id, call, _), value in found.items()} == pytest.approx(
        {("r0", "c0"): -1.0, ("r1", "c0"): 1.0, ("r0", "c1"): 1.0, ("r1", "c1"): -1.0}
    )


def test_rewards_of_different_agents_are_not_compared_with_each_other() -> None:
    """One agent does better than the other in each rollout, and neither in one better than in the other."""
    own = {"writer": 2.0, "checker": 0.0}
    same = [replace(rollout(i, 1.0, "writer", "checker"), agent_rewards=own) for i in range(2)]
    assert not any(advantages_of(uniform, same).values())


def test_agents_without_a_reward_of_their_own_share_a_baseline() -> None:
    first = replace(rollout(0, 1.0, "reader", "checker", "writer"), agent_rewards={"writer": 5.0})
    second = replace(rollout(1, 0.0, "checker", "writer"), agent_rewards={"writer": 7.0})
    found = {key[:2]: value for key, value in advantages_of(uniform, [first, second]).items()}
    without = [rollout(0, 1.0, "reader", "checker"), rollout(1, 0.0, "checker")]
    shared = {key[:2]: value for key, value in advantages_of(uniform, without).items()}
    assert found == pytest.approx({**shared, ("r0", "c2"): -1.0, ("r1", "c1"): 1.0})
