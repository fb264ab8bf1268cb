"""The laws of rows: every sampled token carries loss once, in its own context, and ranks get equal shares."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.backends.rows import Row, make_rows, make_state_rows, report_rows, share
from lightning_core.errors import TrainingError
from lightning_core.experience.trajectories import CHANGED
from lightning_core.records.types import Key, Trajectory, Transition
from tests.build import in_one_memory
from tests.build import make_transition as call
from tests.verl.recorded import parents


def played(*calls: Transition) -> Trajectory:
    return Trajectory("r", "g", "t", 1.0, calls)


def rows_of(*calls: Transition, **options: Any) -> list[Row]:
    return make_rows([played(*calls)], {t.key: 0.5 for t in calls}, **options)


def spell(rows: list[Row]) -> list[list[int]]:
    return [row.tokens.tolist() for row in rows]


def read(rows: list[Row]) -> dict[Key, list[tuple[list[int], int, float, float, float, float, int, int]]]:
    """Returns the entries of each transition: the tokens before each, and its values."""
    found: dict[Key, list[Any]] = {}
    for row in rows:
        places = iter(zip(parents(row), row.logprobs.tolist(), strict=True))
        for key, span in zip(row.keys, row.spans, strict=True):
            for parent, logprob in islice(places, span["count"]):
                found.setdefault(key, []).append(
                    (
                        row.tokens[: parent + 1].tolist(), int(row.tokens[parent + 1]), logprob,
                        float(span["advantage"]), float(span["weight"]), row.temperature,
                        int(span["sequence"]), int(span["unit"]),
                    )
                )  # fmt: skip
    return found


def test_a_turn_goes_on_in_the_row_of_the_one_before_by_hand() -> None:
    first = call("1", [1, 2], [3, 4], logprobs=[-0.1, -0.2])
    second = call("2", [1, 2, 3, 4, 5], [6, 7], logprobs=[-0.3, -0.4], advantage=-2.0)
    (row,) = rows_of(first, second)
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert parents(row) == [1, 2, 4, 5]
    assert row.logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert row.spans.tolist() == [(-1, 1, 2, 0, 1.0, 0.5), (-1, 4, 2, 1, -2.0, 0.5)]
    assert row.keys == (first.key, second.key)


def test_a_branch_has_a_row_of_its_own_and_what_it_left_carries_loss_once() -> None:
    rows = rows_of(call("1", [1], [2]), call("2", [1, 2, 3], [4]), call("3", [1, 2, 5], [6]))
    assert spell(rows) == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [parents(row) for row in rows] == [[0, 2], [2]]


def test_a_changed_history_another_temperature_and_merge_off_begin_rows() -> None:
    first, changed = call("1", [1, 2], [3, 4]), call("2", [1, 2, 3, 5, 6], [7])
    assert len(rows_of(first, changed)) == 2
    cool = call("3", [1, 2, 3, 4, 5], [6], temperature=0.5)
    assert sorted(row.temperature for row in rows_of(first, cool)) == [0.5, 1.0]
    on = call("4", [1, 2, 3, 4, 5], [6], temperature=0.0)
    assert [row.temperature for row in rows_of(first, on)] == [1.0]  # greedy is scored at 1
    assert spell(rows_of(first, on, merge=False)) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]


def test_what_is_not_trained_or_has_no_weight_is_in_no_row() -> None:
    kept = call("kept", [1, 2], [3])
    calls = [
        kept,
        call("other agent", [7], [9], trained=False),
        call("no advantage", [7], [9], advantage=None),
        call("empty", [7], []),
    ]
    (row,) = rows_of(*calls)
    assert row.keys == (kept.key,)
    assert make_rows([played(*calls)], {}) == []
    assert make_rows([], {}) == []


def test_units_come_with_their_transitions() -> None:
    calls = [call("1", [1], [2, 3]), call("2", [4], [5]), call("3", [6], [7])]
    units = {calls[0].key: 4, calls[2].key: 0}
    found = read(rows_of(*calls, units=units))
    assert {key[1]: entries[0][-1] for key, entries in found.items()} == {"1": 4, "2": -1, "3": 0}


def test_a_transition_without_a_prompt_or_with_other_logprobs_is_refused_by_name() -> None:
    with pytest.raises(TrainingError, match="call 'x' of rollout 'r' has no prompt ids"):
        rows_of(call("x", [], [3]))
    with pytest.raises(TrainingError, match="2 completion ids but 1 logprobs"):
        rows_of(call("x", [1], [3, 4], logprobs=[-1.0]))
    with pytest.raises(TrainingError, match="call 'x' of rollout 'r' has no prompt ids"):
        make_state_rows([call("x", [], [3])])


def test_a_row_says_what_each_of_its_replies_was_held_to() -> None:
    held = call("1", [1], [2], grammar='start: "a"')
    rows = rows_of(held, call("2", [1, 2, 3], [4]), call("3", [7], [8]))
    assert {row.keys: row.grammars for row in rows} == {
        (("r", "1", 0), ("r", "2", 0)): ('start: "a"', None),
        (("r", "3", 0),): (),
    }


few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=4)
calls_of_few_tokens = st.lists(
    st.tuples(few_tokens, few_tokens, st.sampled_from([1.0, 0.7]), st.floats(-2, 2, width=32)), max_size=12
)


@given(drawn=calls_of_few_tokens, merge=st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_sampled_token_carries_loss_once_in_its_own_context(drawn: list[Any], merge: bool) -> None:
    calls = [
        call(str(i), p, c, temperature=t, advantage=a, logprobs=[-float(i) - j / 8 for j in range(len(c))])
        for i, (p, c, t, a) in enumerate(drawn)
    ]
    weights = {t.key: float(i) for i, t in enumerate(calls)}
    units = {t.key: i // 2 for i, t in enumerate(calls)}
    rows = make_rows([played(*calls)], weights, units=units, merge=merge)
    assert read(rows) == {
        t.key: [
            (
                [*t.prompt_ids, *t.completion_ids[:j]], t.completion_ids[j], t.logprobs[j], t.advantage,
                weights[t.key], t.temperature, i, units[t.key],
            )
            for j in range(len(t.completion_ids))
        ]
        for i, t in enumerate(calls)
    }  # fmt: skip
    assert len(rows) <= len(calls) if merge else len(rows) == len(calls)
    if merge:
        texts = [(row.temperature, row.tokens.tobytes()) for row in rows]
        assert not any(
            a is not b and a[0] == b[0] and b[1].startswith(a[1]) for a in texts for b in texts
        )  # nothing more could go on in another's row


@given(drawn=calls_of_few_tokens)
@settings(max_examples=50, deadline=None)
def test_a_state_is_read_at_the_last_token_of_its_prompt(drawn: list[Any]) -> None:
    states = [call(str(i), p, c, temperature=t) for i, (p, c, t, _) in enumerate(drawn)]
    rows = make_state_rows(states)
    found = {
        key: row.tokens[: parent + 1].tolist()
        for row in rows
        for key, parent in zip(row.keys, parents(row), strict=True)
    }
    assert found == {t.key: t.prompt_ids for t in states}
    assert sum(float(row.spans["weight"].sum()) for row in rows) == pytest.approx(1.0 if states else 0.0)
    assert len(make_state_rows(states, merge=False)) == len(states)


def test_equal_states_share_a_row() -> None:
    rows = make_state_rows([call("1", [1, 2], [3]), call("2", [1, 2], [4]), call("3", [1, 2, 5], [6])])
    assert spell(rows) == [[1, 2, 5]]
    assert parents(rows[0]) == [1, 1, 2]


def long_rows(lengths: list[int]) -> list[Row]:
    calls = [call(str(i), [i + 1] * length, [0]) for i, length in enumerate(lengths)]
    return rows_of(*calls)


@given(lengths=st.lists(st.integers(1, 300), max_size=40), ranks=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_shares_have_as_many_rows_and_no_rank_is_a_row_ahead(lengths: list[int], ranks: int) -> None:
    rows = long_rows(lengths)
    shared = share(rows, ranks)
    assert len(shared) % ranks == 0
    assert sorted(row.keys for row in shared if not row.is_padding) == sorted(row.keys for row in rows)
    if not rows:
        return
    assert len(shared) - len(rows) < ranks
    assert all(len(row.tokens) == 1 and not len(row.spans) for row in shared if row.is_padding)
    sizes = np.array([len(row.tokens) for row in shared], dtype=float)
    work = sizes / sizes.sum() + sizes**2 / (sizes**2).sum()
    loads = work.reshape(ranks, -1).sum(1)
    assert loads.max() - loads.min() <= work.max() - work.min() + 1e-9


def test_shares_of_a_real_spread_of_lengths_take_about_the_same_work() -> None:
    draw = random.Random(0)
    rows = long_rows([int(draw.lognormvariate(6, 0.8)) + 1 for _ in range(503)])
    sizes = np.array([len(row.tokens) for row in share(rows, 8)], dtype=float).reshape(8, -1)
    for each in (sizes.sum(1), (sizes**2).sum(1)):
        assert each.max() / each.mean() < 1.05


def test_the_report_counts_the_tokens_that_pass_and_names_what_was_not_merged() -> None:
    first = call("1", [1, 2], [3, 4, 5])
    on, changed = call("2", [1, 2, 3, 4, 5, 6], [7]), call("3", [1, 2, 3, 8, 9], [7])
    batch = [played(first, on, changed), played(replace(first, rollout_id="other", trained=False))]
    rows = make_rows(batch, {t.key: 1.0 for each in batch for t in each.transitions})
    report = report_rows(batch, share(rows, 3))
    assert report.tokens_before == 5 + 7 + 6
    assert report.tokens_after == 7 + 6
    assert report.reasons == {CHANGED: 1}


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=300)
def test_prompts_in_one_memory_make_the_rows_that_lists_make(seed: int, merge: bool) -> None:
    draw = random.Random(seed)
    calls: list[Transition] = []
    for number in range(draw.randrange(1, 9)):
        prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 3))]
        if calls and draw.random() < 0.8:
            before = draw.choice(calls)
            kept = list(before.completion_ids)[: draw.choice([1, 9, 9])]
            prompt = [*before.prompt_ids, *kept, *prompt]
        reply = [draw.randrange(2) for _ in range(draw.randrange(1, 4))]
        calls.append(call(f"c{number}", prompt, reply, temperature=draw.choice([1.0, 1.0, 0.5])))
    draw.shuffle(calls)

    def facts(calls: list[Transition]) -> list[object]:
        rows = [*rows_of(*calls, merge=merge), *make_state_rows(calls, merge=merge)]
        arrays = [(row.tokens, row.spans, row.logprobs) for row in rows]
        numbers = [(each.dtype, each.tolist()) for one in arrays for each in one]
        return [*numbers, *((row.temperature, row.keys) for row in rows)]

    assert facts(in_one_memory(calls)) == facts(calls)
