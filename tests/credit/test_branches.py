"""Which call goes on from which, and what came after it, worked out by hand and against a slow definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.credit.branches import find_parents, returns_to_go
from lightning_core.records.types import Transition
from tests.credit.telling import Said, tell


def call(prompt: list[int], reply: list[int]) -> Transition:
    return Transition("r", f"{prompt}{reply}", 0, "w", True, prompt, reply, [0.0] * len(reply), 0)


@pytest.mark.parametrize(
    ("calls", "parents"),
    [
        # a conversation that goes on, with observations 5 and 6 between the turns
        ([([1], [2]), ([1, 2, 5], [3]), ([1, 2, 5, 3, 6], [4])], [None, 0, 1]),
        # two conversations that interleave
        ([([1], [2]), ([7], [8]), ([7, 8, 5], [3]), ([1, 2, 5], [3])], [None, None, 1, 0]),
        # the same prompt is a sibling; the child goes on from the sibling whose reply it repeats
        ([([1], [2]), ([1], [3]), ([1, 2, 5], [4]), ([1, 3, 5], [4])], [None, None, 0, 1]),
        # parallel branches of one call
        ([([1], [2]), ([1, 2, 5], [3]), ([1, 2, 6], [3])], [None, 0, 0]),
        # the reply was cut from the history: the prompt alone tells, the latest of equals
        ([([1], [2]), ([1], [3]), ([1, 9], [4])], [None, None, 1]),
        # the stop token was lost: the reply that is repeated furthest
        ([([1], [2, 3, 0]), ([1], [2, 4, 0]), ([1, 2, 3, 5], [6])], [None, None, 0]),
        # a prompt that goes on without a word between
        ([([1], [2]), ([1, 2], [3])], [None, 0]),
        # a later call is nobody's parent, an empty prompt neither
        ([([1, 2, 5], [3]), ([1], [2])], [None, None]),
        ([([], [1]), ([1, 2], [3])], [None, None]),
        # ids above 255 and 65535 sort as numbers do
        ([([70000], [300]), ([70000, 300, 1], [2])], [None, 0]),
    ],
)
def test_a_call_goes_on_from_the_one_it_shares_most_with(calls, parents):
    assert find_parents([call(prompt, reply) for prompt, reply in calls]) == parents


def slow_parent(transitions: list[Transition], place: int) -> int | None:
    """The definition, word for word."""
    prompt = list(transitions[place].prompt_ids)
    best, found = (0, 0, -1), None
    for other in range(place):
        before = list(transitions[other].prompt_ids)
        if before and len(before) < len(prompt) and prompt[: len(before)] == before:
            whole = [*before, *transitions[other].completion_ids]
            same = next((i for i, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), None)
            shared = min(len(whole), len(prompt)) if same is None else same
            if (shared, len(before), other) > best:
                best, found = (shared, len(before), other), other
    return found


ids = st.lists(st.integers(0, 2), max_size=4)


@given(st.lists(st.tuples(ids, ids), max_size=9))
def test_parents_are_those_of_the_definition(calls):
    transitions = [call(prompt, reply) for prompt, reply in calls]
    assert find_parents(transitions) == [slow_parent(transitions, i) for i in range(len(transitions))]


def test_token_ids_may_be_an_array():
    first, second = call([1], [2]), call([1, 2, 5], [3])
    arrays = [
        replace(t, prompt_ids=np.array(t.prompt_ids), completion_ids=np.array(t.completion_ids))
        for t in (first, second)
    ]  # type: ignore[arg-type]
    assert find_parents(arrays) == [None, 0]


def test_the_return_is_discounted_by_turns_along_the_branch():
    # c0 earns 1, c1 after it 2, c2 after that 4; the end is worth 8
    chain = tell(0, 8.0, Said(reward=1), Said(after=0, reward=2), Said(after=1, reward=4))
    assert list(returns_to_go(chain, 0.5).values()) == [
        1 + 2 / 2 + 4 / 4 + 8 / 4,
        2 + 4 / 2 + 8 / 2,
        4 + 8,
    ]


def test_parallel_branches_share_what_came_before_and_nothing_else():
    # c1 and c2 both go on from c0; c3 goes on from c2
    fork = tell(
        0, 8.0, Said(reward=1), Said(after=0, reward=2), Said(after=0, reward=4), Said(after=2, reward=16)
    )
    assert list(returns_to_go(fork, 0.5).values()) == [
        1 + 2 / 2 + 4 / 2 + 16 / 4 + 8 / 4,  # the end is that of the longest branch, two turns away
        2 + 8,
        4 + 16 / 2 + 8 / 2,
        16 + 8,
    ]


def test_the_choices_of_a_call_bear_its_reward_once_for_the_turn_before():
    several = tell(0, 8.0, Said(reward=1), Said(after=0, reward=2, choices=3))
    assert list(returns_to_go(several, 0.5).values()) == [1 + 2 / 2 + 8 / 2, 10, 10, 10]


def test_a_reward_that_is_addressed_to_no_transition_counts_like_the_final_one():
    chain = tell(0, 8.0, Said(reward=1), Said(after=0), intermediate=3.0)
    assert list(returns_to_go(chain, 0.5).values()) == [1 + (8 + 2) / 2, 8 + 2]


def test_an_agent_s_own_final_reward_is_that_of_its_calls():
    both = tell(0, 8.0, Said("w"), Said("v"), agent_rewards={"v": 2.0})
    assert list(returns_to_go(both).values()) == [8.0, 2.0]
