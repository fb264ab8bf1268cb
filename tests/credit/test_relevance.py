"""Relevance credit: its weights by hand, and that they, and those of evidence, turn no gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from lightning_core.credit.base import Comparison, Credit, add_up, assign, group_by_id
from lightning_core.credit.evidence import BatchEvidence
from lightning_core.credit.relevance import (
    Learnt,
    Relevance,
    Saying,
    Spread,
    add_learnt,
    learn,
    learn_from,
    learnt_elsewhere,
    spread_of,
)
from lightning_core.credit.tabular import Tabular, VisitTable
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory
from tests.credit.game import AGENTS, POLICY, Floats, Story, play, probabilities, score, stories, total
from tests.credit.telling import Said, tell


def test_the_spread_of_returns_between_and_within_replies():
    # mean 1; reply 1: 2.5 and 1.5, reply 2: 0.5 and -0.5. between 4 * 1^2, within 4 * 0.5^2
    spread = spread_of([[2.5, 1.5], [0.5, -0.5]])
    assert spread == Spread(between=4.0, kinds=1, within=1.0, repeats=2)
    assert spread.relevance == 1 - (1 / 2) / (4 / 1)
    both = spread + spread_of([[1.0, 0.0], [1.0, 0.0]])
    assert both == Spread(between=4.0, kinds=2, within=2.0, repeats=4)
    assert both.relevance == 1 - (2 / 4) / (4 / 2)
    assert both * 0.5 == Spread(between=2.0, kinds=1, within=1.0, repeats=2)
    assert (both * 0.5).relevance == both.relevance


@pytest.mark.parametrize(
    "returns",
    [[[1.0, 0.0]], [[1.0], [0.0]], [[1.0]]],
    ids=["one reply", "none given twice", "alone"],
)
def test_what_cannot_be_compared_tells_nothing(returns):
    assert spread_of(returns) == Spread()
    assert Spread().relevance is None


WON, LOST = ("w", "won"), ("w", "lost")


def test_replies_that_are_all_different_are_told_by_the_next_state():
    shown = [(1.0, WON), (0.5, WON), (0.0, LOST), (0.5, LOST)]
    learnt = learn_from([Saying(returned, (place,), state) for place, (returned, state) in enumerate(shown)])
    assert learnt == Learnt(spread_of([[1.0, 0.5], [0.0, 0.5]]))
    assert learnt.hidden.relevance is None


def test_what_the_next_state_hides_is_told_by_the_replies_before_it():
    # reply 1 leads to WON and wins; reply 2 and 3 lead to LOST, where only reply 3 wins
    told = [(1.0, 1, WON)] * 2 + [(0.0, 2, LOST), (0.5, 2, LOST), (1.0, 3, LOST), (0.5, 3, LOST)]
    learnt = learn_from([Saying(returned, (reply,), state) for returned, reply, state in told])
    assert learnt.replies == spread_of([[1.0, 1.0], [0.0, 0.5], [1.0, 0.5]])
    assert learnt.hidden == spread_of([[0.0, 0.5], [1.0, 0.5]])


def batch(groups: int = 3) -> list[Trajectory]:
    """Groups in which the first reply decides, as the next state shows, and the second does not matter."""
    return [
        tell(
            4 * group + number,
            float(first == 1),
            Said(shown="a", reply=first),
            Said(shown="won" if first == 1 else "lost", reply=second),
            group_id=f"g{group}",
        )
        for group in range(groups)
        for number, (first, second) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)])
    ]


def odd_one() -> list[Trajectory]:
    """A group in which the second reply decides, and nothing is shown of the first."""
    return [
        tell(20 + number, float(second == 2), Said(shown="a", reply=first), Said(shown="b", reply=second))
        for number, (first, second) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)])
    ]


def factors(method: Relevance, groups: list[list[Trajectory]], own: float) -> dict[str, set[float]]:
    """Returns the factors of each call of the last group, beside tabular credit with this share."""
    found = add_up(groups[-1], method.of_batch(groups)(groups[-1]), scale="none")
    plain = add_up(groups[-1], Tabular(own)(groups[-1]), scale="none")
    weights = defaultdict(set)
    for key in plain:
        weights[key[1]].add(round(found[key] / plain[key], 9))
    return dict(weights)


def test_a_turn_counts_as_much_as_its_replies_made_a_difference_in_the_other_rollouts():
    # no second reply was given twice in a state, so nothing is known of it
    groups = [*group_by_id(batch()).values()]
    assert factors(Relevance(unknown=0.75), groups, own=1.0) == {"c0": {1.0}, "c1": {0.75}}


def test_replies_after_which_all_earn_the_same_made_no_difference():
    pairs = [(1, 1), (1, 1), (1, 2), (1, 2), (2, 1), (2, 1), (2, 2), (2, 2)]
    group = [
        tell(
            number,
            float(first == 1),
            Said(shown="a", reply=first),
            Said(shown="won" if first == 1 else "lost", reply=second),
        )
        for number, (first, second) in enumerate(pairs)
    ]
    assert factors(Relevance(floor=0.25), [group], own=1.0) == {"c0": {1.0}, "c1": {0.25}}


def test_equal_returns_tell_only_if_the_turn_has_others():
    won, lost = [Said(shown="a", reply=1), Said(shown="b", reply=1)], [Said(shown="a", reply=2)]
    alike = [tell(number, 1.0, *won) for number in range(4)]
    assert learn(VisitTable(alike)) == {}
    [known, *_] = Relevance().known(VisitTable([*alike, tell(9, 0.0, *lost)]), {})
    assert [*known] == [("w", 0)]  # all that came to the second turn earned the same


def test_what_an_agents_replies_hide_is_also_told_by_its_other_turns():
    # the first turn's replies hide something, its next state being one; the second's have no next state twice
    shown = [(1, 1, 1.0), (1, 2, 1.0), (2, 3, 0.0), (2, 4, 0.5), (1, 5, 0.5)]
    group = [
        tell(place, reward, Said(shown="a", reply=first), Said(shown="b", reply=second))
        for place, (first, second, reward) in enumerate(shown)
    ]
    first, second = ("w", 0), ("w", 1)
    told, [*known] = learn(VisitTable(group), without=0), Relevance().known(VisitTable(group), {})
    assert told[second].hidden == Spread()
    assert known[0][second].hidden == told[first].hidden * (1 / told[first].hidden.kinds)
    assert known[0][first].hidden.relevance == pytest.approx(told[first].hidden.relevance)


def test_a_group_alone_is_told_by_its_other_rollouts():
    # without the first: c0 has returns 1 | 0, 1, so W = .5 and B = 1/6; c1 has 0 | 1, 1, so W = 0
    assert factors(Relevance(floor=0.25), [odd_one()], own=0.25) == {"c0": {0.25}, "c1": {1.0}}


def test_other_groups_count_less_than_the_own():
    # of c0 without the first: W = (.5 + .3 * 0) / (1 + .3 * 2), B = (1/6 + .3 * 1) / (1 + .3)
    other = [replace(each, rollout_id=f"y{each.rollout_id}", group_id="y") for each in batch(1)]
    other_groups = add_learnt([learn(VisitTable(other))])
    [known, *_] = Relevance(others=0.3).known(VisitTable(odd_one()), other_groups)
    assert known["w", 0].replies.relevance == pytest.approx(1 - (0.5 / 1.6) / ((1 / 6 + 0.3) / 1.3))


def test_a_rollouts_own_return_decides_not_whether_its_turn_is_known():
    # all others of its group earned 0, and the other group tells of the second turn only
    def own_group(reward: float) -> list[Trajectory]:
        rewards = [*[0.0] * 7, reward]
        return [
            tell(place, earned, Said(shown="s", reply=place % 2), Said(shown="t", reply=0))
            for place, earned in enumerate(rewards)
        ]

    other = [
        tell(place, float(place < 4), Said(shown=f"u{place}", reply=0), Said(shown="v", reply=place % 2))
        for place in range(8)
    ]
    for reward in (0.0, 1.0):
        tables = {"own": VisitTable(own_group(reward)), "other": VisitTable(other)}
        elsewhere = learnt_elsewhere({name: learn(table) for name, table in tables.items()})
        known = list(Relevance().known(tables["own"], elsewhere["own"]))[7]
        assert [*known] == [("w", 1)]


def test_a_rollout_has_no_part_in_its_own_weights():
    group = odd_one()
    for place, each in enumerate(group):
        changed = [*group[:place], replace(each, reward=9.0), *group[place + 1 :]]
        assert learn(VisitTable(changed), without=place) == learn(VisitTable(group), without=place)
        assert learn(VisitTable(changed)) != learn(VisitTable(group))


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
    """Standard errors that a turn's mean is off its true direction, at most; and how long each is."""
    off, lengths = 0.0, []
    for nth, true in true_gradients().items():
        mean, error = found[nth].mean(0), found[nth].std(0) / np.sqrt(len(found[nth]))
        length = float((mean * true).sum() / (true * true).sum())
        lengths.append(length)
        off = max(off, float((np.abs(mean - length * true) / np.maximum(error, 1e-9)).max()))
    return off, lengths


def lucky(group: Sequence[Trajectory]) -> list[Comparison]:
    """Relevance of a rollout's own luck: a weight that has to do with the return it weighs."""
    [found] = Relevance()(group)
    weights = [1.0 if each.reward > 0.5 else 0.0 for each in group]
    peers = zip(found.peers, weights, strict=True)
    return [replace(found, peers=tuple({k: w * a for k, a in peer.items()} for peer, w in peers))]


def test_weights_change_how_far_a_turn_goes_and_not_where_to():
    off, lengths = furthest(estimates(Relevance(floor=0.0)))
    assert off < 4.5
    assert all(0 < length < 1 for length in lengths)


def test_what_other_groups_choose_turns_no_gradient():
    assert furthest(estimates(BatchEvidence(), batches=500))[0] < 4.5


def test_a_weight_by_its_own_return_is_found_out():
    assert furthest(estimates(lucky))[0] > 6


@pytest.mark.parametrize("options", [{"floor": -0.1}, {"unknown": 2.0}, {"others": -1}], ids=str)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=f"can't use {next(iter(options))}=.* at least 0 and at most 1"):
        Relevance(**options)
