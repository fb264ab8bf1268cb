"""State and tabular credit, worked out by hand; and which call is a rollout's next state."""

from __future__ import annotations

import pytest

from lightning_core.credit.base import add_up
from lightning_core.credit.tabular import Tabular, state, visits
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory
from tests.credit.telling import Said, tell


def plain(method, group: list[Trajectory]) -> dict[tuple[str, str], float]:
    return {(key[0], key[1]): value for key, value in add_up(group, method(group), "none", "none").items()}


def chain(number: int, reward: float, *shown: str, **fields) -> Trajectory:
    """A call for each observation, each a conversation of its own."""
    return tell(number, reward, *(Said(shown=each, **fields) for each in shown))


def test_state_compares_a_call_with_what_others_came_to_from_the_same_state():
    # "a" was seen by all: others' returns, and once more their mean at turn 0, which is the same number.
    # "x": r0 and r1, so each is compared with the other's return and, once, with the mean of turn 1:
    # r0 with mean(0, mean(0, 1)), r1 with mean(1, mean(1, 1)). r2 saw "y" alone: the mean of turn 1
    group = [chain(0, 1.0, "a", "x"), chain(1, 0.0, "a", "x"), chain(2, 1.0, "a", "y")]
    assert plain(state, group) == {
        ("r0", "c0"): 1 - 1 / 2,
        ("r0", "c1"): 1 - 1 / 4,
        ("r1", "c0"): 0 - 1,
        ("r1", "c1"): 0 - 1,
        ("r2", "c0"): 1 - 1 / 2,
        ("r2", "c1"): 1 - 1 / 2,
    }


def test_tabular_takes_the_next_state_at_what_others_made_of_it():
    # own = 0. r0 at "a": others came from "x" to 0, so 0 - mean(0, 1)
    group = [chain(0, 1.0, "a", "x"), chain(1, 0.0, "a", "x"), chain(2, 1.0, "a", "y")]
    found = plain(Tabular(own=0.0), group)
    assert found["r0", "c0"] == 0 - 1 / 2  # instead of its own 1
    assert found["r1", "c0"] == 1 - 1
    assert found["r2", "c0"] == 1 - 1 / 2  # nobody else came to "y": its own return
    mixed = plain(Tabular(own=0.25), group)
    assert mixed["r0", "c0"] == (0.25 * 1 + 0.75 * 0) - 1 / 2
    last = {key: value for key, value in plain(state, group).items() if key[1] == "c1"}
    assert {key: mixed[key] for key in last} == last  # there is no next state: the whole return


def test_what_was_earned_before_the_next_state_is_the_call_s_own():
    group = [
        tell(0, 0.0, Said(shown="a", reward=2.0, reply=1), Said(shown="x", reward=4.0, reply=1)),
        tell(1, 0.0, Said(shown="a", reply=2), Said(shown="x", reply=2)),
    ]
    # r0 at "a": 2 of its own, then what r1 made of "x": 0; compared with r1's 0
    assert plain(Tabular(own=0.0), group) == {
        ("r0", "c0"): 2.0,
        ("r0", "c1"): 4.0,
        ("r1", "c0"): 0 + 4 - 6,
        ("r1", "c1"): -4.0,
    }


def following(*calls: Said) -> list[str | None]:
    """Returns the observation in the state after each call."""
    found = visits(tell(0, 1.0, *calls))
    return [v.following and v.following.transition.observation for v in found]


def test_the_next_state_is_the_next_call_during_which_no_other_ran():
    plan, join = Said(shown="plan", span=(0, 1)), Said(shown="join", span=(5, 6))
    workers = [Said(shown="left", span=(1, 4)), Said(shown="right", span=(2, 3))]
    assert following(plan, *workers, join) == ["join", "join", "join", None]
    one_by_one = [Said(shown="left", span=(1, 2)), Said(shown="right", span=(2, 3))]
    assert following(plan, *one_by_one, join) == ["left", "right", "join", None]
    unknown = [Said(shown=shown) for shown in ("plan", "left", "right", "join")]
    assert following(*unknown) == ["left", "right", "join", None]


def test_a_call_of_an_untrained_agent_or_without_an_observation_is_no_state():
    stranger = Said("stranger", trained=False, shown="s", span=(0, 9))
    assert following(
        Said(shown="a", span=(0, 1)), stranger, Said(span=(2, 3)), Said(shown="b", span=(4, 5))
    ) == [
        "b",
        "b",
        None,
    ]


def test_one_rollout_alone_says_nothing():
    assert plain(state, [chain(0, 1.0, "a", "b")]) == {}


def test_a_share_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"own=1\.5"):
        Tabular(own=1.5)
