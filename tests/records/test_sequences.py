"""Sequences as arrays and as bytes: as the ids themselves say, whatever kind of sequence they come in."""

from __future__ import annotations

from array import array
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import TokenIdsError
from lightning_core.records.sequences import as_ids, as_logprobs, common, join, prefixes, spell, spell_each

ids = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)), max_size=6)


@given(first=ids, second=ids)
def test_bytes_sort_and_begin_one_another_as_the_ids_do(first: list[int], second: list[int]) -> None:
    assert (spell(first) < spell(second)) == (first < second)
    assert spell(second).startswith(spell(first)) == (second[: len(first)] == first)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    assert common(spell(first), spell(second)) == len(list(same))


@given(parts=st.lists(ids, max_size=4))
def test_parts_are_spelt_one_after_another_from_any_kind_of_sequence(parts: list[list[int]]) -> None:
    whole = [token for part in parts for token in part]
    for kind in (
        list,
        tuple,
        as_ids,
        lambda part: memoryview(as_ids(part)),
        lambda part: np.array(part, "i8"),
    ):
        assert np.frombuffer(spell(*map(kind, parts)), ">u4").tolist() == whole
    assert as_ids(whole).tolist() == whole


@st.composite
def parts_of_memory(draw: st.DrawFn) -> list[tuple[memoryview, list[int]]]:
    """Prompts that lie anywhere in one of two memories, and replies, many of which are what follows there."""
    few = st.lists(st.integers(1, 2), max_size=8)
    memories = [memoryview(as_ids(draw(few))) for _ in range(2)]
    found = []
    for _ in range(draw(st.integers(0, 8))):
        memory = memories[draw(st.integers(0, 1))]
        start = draw(st.sampled_from([0, 0, 0, 1]))
        end = draw(st.integers(start, max(start, len(memory))))
        prompt = memory[start : end : draw(st.sampled_from([1, 1, 1, 2]))]
        goes_on = memory[end : end + draw(st.integers(0, 3))].tolist()
        found.append((prompt, draw(st.one_of(st.just(goes_on), few))))
    return found


@given(parts_of_memory())
def test_sequences_in_one_memory_are_spelt_and_sorted_as_the_ids_say(
    given: list[tuple[memoryview, list[int]]],
) -> None:
    ids = [[*prompt, *reply] for prompt, reply in given]
    places = range(len(ids))
    spelt = spell_each([prompt for prompt, _ in given], [reply for _, reply in given])
    assert [np.frombuffer(spelt.part(place), ">u4").tolist() for place in places] == ids
    assert spelt.in_order(places) == sorted(places, key=ids.__getitem__)
    assert spelt.in_order(places[1::2]) == sorted(places[1::2], key=ids.__getitem__)
    for one in places:
        for other in places:
            assert spelt.begins(one, other) == (ids[other][: len(ids[one])] == ids[one])
            assert spelt.common(one, other) == common(spell(ids[one]), spell(ids[other]))
    by_then: list[int] = []
    for place, stack in prefixes(spelt):
        by_then.append(place)
        begin = [other for other in by_then if spelt.begins(other, place)]
        assert sorted(other for alike in stack for other in alike) == sorted(begin)
        assert [len(ids[alike[0]]) for alike in stack] == sorted({len(ids[other]) for other in begin})


def test_what_one_text_holds_is_spelt_once() -> None:
    memory = memoryview(as_ids(range(9)))
    spelt = spell_each([memory[:2], memory[:5], memory[:7]], [[2, 3], [5, 6], [9]])
    assert spelt.texts[0] is spelt.texts[1] is spelt.texts[2]
    branch = spell_each([memory[:2], memory[:5]], [[2, 7], [9]])
    assert branch.texts[0] is not branch.texts[1]


def test_logprobs_are_joined_in_four_bytes_each() -> None:
    joined = join([-0.5, -1.0], (), as_logprobs([-2.0]), array("d", [float("-inf")]))
    assert joined.dtype == np.float32
    assert joined.tolist() == [-0.5, -1.0, -2.0, float("-inf")]
    assert join().tolist() == []


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5])
def test_a_number_that_is_no_token_id_is_refused(wrong: int) -> None:
    for ids in ([1, wrong], (1, wrong), np.array([1, wrong], dtype=object)):
        with pytest.raises(TokenIdsError, match=rf"^{wrong} is not a token id"):
            as_ids(ids)
