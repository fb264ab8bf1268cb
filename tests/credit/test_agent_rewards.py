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


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # writer: 0 and 2, mean 1, deviation 1; checker: 1 and -1, mean 0, deviation 1
        (per_agent, {("r0", "c0"): -1.0, ("r1", "c0"): 1.0, ("r0", "c1"): 1.0, ("r1", "c1"): -1.0}),
        # both rollouts have the mean 1/2: distances -1/2, 1/2 and 3/2, -3/2, so the deviation is
        # sqrt((1/4 + 9/4) / 2) = sqrt(5)/2, and the advantages are those distances over it
        (
            uniform,
            {
                ("r0", "c0"): -(5**-0.5),
                ("r0", "c1"): 5**-0.5,
                ("r1", "c0"): 3 * 5**-0.5,
                ("r1", "c1"): -3 * 5**-0.5,
            },
        ),
    ],
)
def test_credit_goes_by_the_agent_s_own_return(
    method: Credit, expected: dict[tuple[str, str], float]
) -> None:
    found = advantages_of(method, group())
    assert {(rollout_id, call): value for (rollout_id, call, _), value in found.items()} == pytest.approx(
        expected
    )
