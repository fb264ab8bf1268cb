"""Rows as nested tensors, by hand, and values back from what a worker gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_core.backends.rows import Row, make_rows, share
from lightning_core.backends.verl.batch import BatchMemory, entry_values, fields, flat
from lightning_core.errors import TrainingError
from lightning_core.records.types import Key, Trajectory, Transition
from tests.verl.recorded import parents, play


def rows_by_hand() -> list[Row]:
    """A chain of two calls, another temperature, and a padding row."""
    calls = (
        Transition("r", "1", 0, "a", True, [5, 6], [7, 8], [-0.5, -1.0], 0, advantage=1.0),
        Transition("r", "2", 0, "a", True, [5, 6, 7, 8, 9], [4], [-2.0], 0, advantage=-1.0),
        Transition("r", "3", 0, "a", True, [3], [2], [-3.0], 0, temperature=0.5, advantage=2.0),
    )
    weights = {t.key: 0.25 for t in calls}
    rows = make_rows([Trajectory("r", "g", "t", 0.0, calls)], weights, units={calls[2].key: 7})
    return [*rows, share(rows[:1], 2)[1]]


def test_fields_by_hand() -> None:
    data = fields(rows_by_hand(), proximal=np.array([-0.6, -1.1, -2.1, -9.0]), reference=None)
    listed = {name: each.tolist() if name == "temperature" else unbind(each) for name, each in data.items()}
    assert listed == {
        "input_ids": [[5, 6, 7, 8, 9, 4], [3, 2], [5]],
        "position_ids": [[0, 1, 2, 3, 4, 5], [0, 1], [0]],
        "loss_mask": [[False, True, True, False, True, False], [True, False], [False]],
        "span_first": [[1, 4], [0], []],
        "span_count": [[2, 1], [1], []],
        "span_advantage": [[1.0, -1.0], [2.0], []],
        "span_weight": [[0.25, 0.25], [0.25], []],
        "span_sequence": [[0, 1], [2], []],
        "span_unit": [[-1, -1], [7], []],
        "entry_logprobs": [[-0.5, -1.0, -2.0], [-3.0], []],
        "entry_proximal": [[pytest.approx(-0.6), pytest.approx(-1.1), pytest.approx(-2.1)], [-9.0], []],
        "temperature": [1.0, 0.5, 1.0],
    }


def test_units_are_left_away_where_there_are_none() -> None:
    """They are as many numbers to carry as the others, and only preferences have them."""
    assert "span_unit" not in fields([row for row in rows_by_hand() if 7 not in row.spans["unit"]])


def test_what_a_span_says_is_spread_over_its_entries() -> None:
    data = fields(rows_by_hand())
    assert [flat(data, name).tolist() for name in ("advantage", "unit")] == [[1, 1, -1, 2], [-1, -1, -1, 7]]
    assert flat(data, "logprobs").tolist() == [-0.5, -1.0, -2.0, -3.0]
    assert flat(data, "proximal") is None


def test_a_memory_holds_one_batch_after_another_whatever_their_sizes() -> None:
    memory = BatchMemory()
    batches = [make_rows(play(seed), _all(seed)) for seed in (1, 2)]
    by_size = sorted(batches, key=lambda rows: sum(len(row.tokens) for row in rows))
    for rows in [by_size[1], by_size[0], by_size[1][:3], rows_by_hand()]:
        kept, fresh = fields(rows, memory), fields(rows)
        assert list(kept) == list(fresh)
        for name in set(fresh) - {"temperature"}:
            assert kept[name].dtype == fresh[name].dtype
            assert unbind(kept[name]) == unbind(fresh[name])


def test_a_larger_batch_has_its_values_in_order_too() -> None:
    """More rows than are looked at in one go."""
    rows = share([row for seed in range(60) for row in make_rows(play(seed), _all(seed))], 3)
    assert len(rows) > 512
    found = entry_values(fields(rows)["input_ids"], rows)
    assert found.tolist() == [float(row.tokens[p]) for row in rows for p in parents(row)]
    mask = fields(rows)["loss_mask"].unbind()
    assert [each.nonzero().flatten().tolist() for each in mask] == [sorted({*parents(row)}) for row in rows]


def _all(seed: int) -> dict[Key, float]:
    return {t.key: 1.0 for each in play(seed) for t in each.transitions}


def unbind(nested: torch.Tensor) -> list[list[float]]:
    return [each.tolist() for each in nested.unbind()]


def test_values_come_back_for_the_entries_in_the_order_of_the_rows() -> None:
    rows = share(make_rows(play(1), _all(1)), 3)
    found = entry_values(fields(rows)["input_ids"], rows)
    assert found.tolist() == [float(row.tokens[p]) for row in rows for p in parents(row)]


def test_values_of_rows_in_another_order_are_refused() -> None:
    rows = rows_by_hand()
    with pytest.raises(TrainingError, match="3 rows of 9 tokens for 3 rows of 9, or in another order"):
        entry_values(fields(rows)["input_ids"], rows[::-1])


def test_an_array_of_another_length_and_no_rows_at_all_are_refused() -> None:
    with pytest.raises(TrainingError, match="proximal has 3 numbers for 4 entries"):
        fields(rows_by_hand(), proximal=np.zeros(3))
    with pytest.raises(TrainingError, match="no rows to make a batch of"):
        fields([])
