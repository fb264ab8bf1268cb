"""The choices that the app went on with are credited, and no other choices of the call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_core.algorithms.dpo import Pairs, pair_up
from lightning_core.credit.anchor import Anchor
from lightning_core.credit.base import Credit, assign
from lightning_core.credit.branches import without_dropped
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.gae import Gae
from lightning_core.credit.tabular import state
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.records.types import Trajectory
from tests.credit.telling import Said, tell

METHODS: list[Credit] = [uniform, per_agent, turn, Discounted(0.5), Anchor(), state, Gae(), Pairs()]


def kept(*calls: Said) -> list[tuple[str, int]]:
    """Call and choice of what is left."""
    return [(t.call_id, t.choice) for t in without_dropped(tell(0, 1.0, *calls)).transitions]


def test_the_choice_that_a_later_prompt_repeats_is_kept():
    assert kept(Said(choices=3), Said(after=0, choice=1)) == [("c0", 1), ("c1", 0)]


def test_if_nothing_goes_on_the_first_is_kept():
    assert kept(Said(choices=3), Said("other")) == [("c0", 0), ("c1", 0)]


def test_all_that_are_gone_on_with_are_kept():
    search = [Said(choices=3), Said(after=0, choice=2), Said(after=0, choice=1, choices=2)]
    assert kept(*search) == [("c0", 1), ("c0", 2), ("c1", 0), ("c2", 0)]


def test_a_prompt_that_repeats_no_reply_tells_of_the_first():
    # the history was cut: the prompt goes on without the reply
    whole = tell(0, 1.0, Said(choices=2), Said(after=0, choice=1))
    *choices, later = whole.transitions
    cut = replace(later, prompt_ids=[*choices[0].prompt_ids, 77])
    left = without_dropped(replace(whole, transitions=(*choices, cut)))
    assert [(t.call_id, t.choice) for t in left.transitions] == [("c0", 0), ("c1", 0)]


def test_of_equal_replies_the_first_is_kept():
    whole = tell(0, 1.0, Said(choices=2), Said(after=0))
    first, second, later = whole.transitions
    twin = replace(second, completion_ids=first.completion_ids)
    left = without_dropped(replace(whole, transitions=(first, twin, later)))
    assert [(t.call_id, t.choice) for t in left.transitions] == [("c0", 0), ("c1", 0)]


def test_a_rollout_of_single_choices_is_left_as_it_is():
    whole = tell(0, 1.0, Said(), Said(after=0))
    assert without_dropped(whole) is whole


def drafts(number: int, reward: float, picked: int) -> Trajectory:
    """Three drafts, of which one is gone on with."""
    return tell(
        number,
        reward,
        Said(choices=3, shown="x", value=0.5),
        Said(after=0, choice=picked, reward=-0.25, shown="y", value=0.5),
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda m: getattr(m, "__name__", repr(m)))
def test_a_dropped_choice_has_no_advantage_and_changes_nobody_s(method):
    batch = [drafts(0, 1.0, 2), drafts(1, 0.0, 1)]
    plain = [without_dropped(each) for each in batch]
    credited, _ = assign(batch, method, "leave_one_out", "none")
    alone, _ = assign(plain, method, "leave_one_out", "none")
    found = {t.key: t.advantage for each in credited for t in each.transitions}
    wanted = {t.key: t.advantage for each in alone for t in each.transitions}
    assert len(found) == 8
    assert {key: found[key] for key in wanted} == wanted
    assert all(wanted.values())
    assert {value for key, value in found.items() if key not in wanted} == {None}


def test_turn_by_turn_the_chosen_draft_has_what_came_after_it():
    # r0: 1 - 1/4 to go at the draft; r1: 0 - 1/4
    credited, _ = assign([drafts(0, 1.0, 2), drafts(1, 0.0, 1)], turn, "leave_one_out", "none")
    found = {t.key: t.advantage for each in credited for t in each.transitions}
    assert (found["r0", "c0", 2], found["r0", "c0", 0], found["r1", "c0", 1]) == (1.0, None, -1.0)


def test_a_side_of_a_pair_holds_no_dropped_choice():
    [pair] = pair_up([drafts(0, 1.0, 2), drafts(1, 0.0, 1)])
    assert pair.chosen == (("r0", "c0", 2), ("r0", "c1", 0))
    assert pair.rejected == (("r1", "c0", 1), ("r1", "c1", 0))
