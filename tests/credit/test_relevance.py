"""Relevance credit: its weights by hand, and that they turn no gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from lightning_core.credit.base import Comparison, Credit, add_up, assign, group_by_id
from lightning_core.credit.relevance import Relevance, Saying, Spread, spread_of
from lightning_core.credit.tabular import Tabular
from lightning_core.errors import ConfigError
from lightning_core.types import Trajectory
from tests.credit.game import AGENTS, POLICY, Floats, Story, play, probabilities, score, stories, total
from tests.credit.telling import Said, tell


def said(*pairs: tuple[float, int]) -> list[Saying]:
    """Sayings of (return, reply); the next state is not known."""
    return [Saying(returned, (reply,), None) for returned, reply in pairs]


def test_the_spread_of_returns_between_and_within_replies():
    # mean 1; reply 1: 2.5 and 1.5, reply 2: 0.5 and -0.5. between 4 * 1^2, within 4 * 0.5^2
    spread = spread_of(said((2.5, 1), (1.5, 1), (0.5, 2), (-0.5, 2)))
    assert spread == Spread(between=4.0, kinds=1, within=1.0, repeats=2)
    assert spread.chance == (1 / 2) / (4 / 1)
    both = spread + spread_of(said((1.0, 1), (0.0, 1), (1.0, 2), (0.0, 2)))
    assert both == Spread(between=4.0, kinds=2, within=2.0, repeats=4)
    assert both.chance == (2 / 4) / (4 / 2)
    assert both - spread == Spread(between=0.0, kinds=1, within=1.0, repeats=2)


@pytest.mark.parametrize(
    "pairs",
    [[(1.0, 1), (0.0, 1)], [(1.0, 1), (0.0, 2)], [(1.0, 1), (1.0, 1), (1.0, 2)], [(1.0, 1)]],
    ids=["one reply", "none given twice", "equal returns", "alone"],
)
def test_what_cannot_be_compared_tells_nothing(pairs):
    assert spread_of(said(*pairs)) == Spread()
    assert Spread().chance is None


def test_replies_that_are_all_different_are_told_by_the_next_state():
    won, lost = ("w", "won"), ("w", "lost")
    shown = [(1.0, won), (0.5, won), (0.0, lost), (0.5, lost)]
    sayings = [Saying(returned, (place,), state) for place, (returned, state) in enumerate(shown)]
    assert spread_of(sayings) == spread_of(said((1.0, 1), (0.5, 1), (0.0, 2), (0.5, 2)))


def batch(size: int = 3) -> list[Trajectory]:
    """Groups in which the first reply decides and the second does not matter."""
    return [
        tell(
            4 * group + number,
            float(first == 1),
            Said(shown="a", reply=first),
            Said(shown="b", reply=second),
            group_id=f"g{group}",
        )
        for group in range(size)
        for number, (first, second) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)])
    ]


def test_a_turn_counts_as_much_as_its_replies_made_a_difference_in_the_other_groups():
    rollouts, credit = batch(), Relevance(floor=0.25)
    weighed, _ = assign(rollouts, credit, scale="none")
    plain, _ = assign(rollouts, Tabular(), scale="none")
    for ours, theirs in zip(weighed, plain, strict=True):
        first, second = (
            a.advantage / b.advantage for a, b in zip(ours.transitions, theirs.transitions, strict=True)
        )
        assert first == 1.0
        assert second == 0.25


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_has_no_part_in_its_own_weights(size):
    # in the last group the second reply decides; with another beside it, that one alone is asked
    rollouts = batch(size - 1) + [
        replace(each, rollout_id=f"x{place}", group_id="x", reward=float(place % 2))
        for place, each in enumerate(batch(1))
    ]
    *_, odd = group_by_id(rollouts).values()
    method = Relevance(floor=0.25, unknown=0.75)
    found = add_up(method.of_batch(list(group_by_id(rollouts).values()))(odd), scale="none")
    plain = add_up(Tabular()(odd), scale="none")
    factors = defaultdict(set)
    for key in plain:
        factors[key[1]].add(found[key] / plain[key])
    assert factors == ({"c0": {0.75}, "c1": {0.75}} if size == 1 else {"c0": {1.0}, "c1": {0.25}})


Nth = tuple[str, int]


def turns(story: Story) -> Iterator[tuple[Nth, Floats]]:
    """Whose turn each is and which, with the gradient of its log-probability."""
    seen: defaultdict[str, int] = defaultdict(int)
    for turn in story:
        agent = AGENTS[int(turn.state > 0)]
        yield (agent, seen[agent]), score(POLICY, turn)
        seen[agent] += 1


def true_gradients() -> dict[Nth, Floats]:
    """The part of each turn in the gradient of the expected return: a sum over all stories."""
    found: defaultdict[Nth, Floats] = defaultdict(lambda: np.zeros_like(POLICY))
    for p, story, final in stories(probabilities(np.log(POLICY))):
        for nth, slope in turns(story):
            found[nth] += p * total(story, final) * slope
    return found


def estimates(credit: Credit, batches: int = 1200, groups: int = 4, size: int = 4) -> dict[Nth, Floats]:
    """(batches, state, action) for each turn, from batches of several groups."""
    random = Random(0)
    found: defaultdict[Nth, Floats] = defaultdict(lambda: np.zeros((batches, *POLICY.shape)))
    for number in range(batches):
        played = [
            play(POLICY, random, f"{number}.{group}", i) for group in range(groups) for i in range(size)
        ]
        stories_of = {trajectory.rollout_id: story for trajectory, story in played}
        credited, _ = assign([trajectory for trajectory, _ in played], credit, scale="none")
        for trajectory in credited:
            told = turns(stories_of[trajectory.rollout_id])
            for t, (nth, slope) in zip(trajectory.transitions, told, strict=True):
                found[nth][number] += (t.advantage or 0.0) * slope / (groups * size)
    return found


def furthest(found: dict[Nth, Floats]) -> tuple[float, list[float]]:
    """Standard errors that a turn's mean is off its true direction, at most; and its length beside the true."""
    off, lengths = 0.0, []
    for nth, true in true_gradients().items():
        mean, error = found[nth].mean(0), found[nth].std(0) / np.sqrt(len(found[nth]))
        length = float((mean * true).sum() / (true * true).sum())
        lengths.append(length)
        off = max(off, float((np.abs(mean - length * true) / np.maximum(error, 1e-9)).max()))
    return off, lengths


def lucky(group: Sequence[Trajectory]) -> list[Comparison]:
    """Relevance of a rollout's own luck: a weight that has to do with the return it weighs."""
    [found] = Relevance(own=1.0)(group)
    weights = [1.0 if each.reward > 0.5 else 0.0 for each in group]
    peers = zip(found.peers, weights, strict=True)
    return [replace(found, peers=tuple({k: w * a for k, a in peer.items()} for peer, w in peers))]


def test_weights_change_how_far_a_turn_goes_and_not_where_to():
    off, lengths = furthest(estimates(Relevance(own=1.0, floor=0.0)))
    assert off < 4.5
    assert all(0 < length < 1 for length in lengths)


def test_a_weight_by_its_own_return_is_found_out():
    assert furthest(estimates(lucky))[0] > 6


@pytest.mark.parametrize("options", [{"own": 1.5}, {"floor": -0.1}, {"unknown": 2.0}], ids=str)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} must lie between 0 and 1"):
        Relevance(**options)
