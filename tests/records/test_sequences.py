"""Sequences as arrays and as bytes: as the ids themselves say, whatever kind of sequence they come in."""

from __future__ import annotations

from array import array
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import TokenIdsError
from lightning_core.records.sequences import as_ids, as_logprobs, common, join, spell

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
    for kind in (list, tuple, as_ids, lambda part: np.array(part, dtype=np.int64)):
        assert np.frombuffer(spell(*map(kind, parts)), ">u4").tolist() == whole
    assert as_ids(whole).tolist() == whole


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
