"""Rows as nested tensors, by hand, and values back from what a worker gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_core.backends.verl.batch import entry_values, fields
from lightning_core.backends.verl.rows import Row, make_rows, share
from lightning_core.errors import TrainingError
from lightning_core.types import Trajectory, Transition
from tests.verl.recorded import play


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
    data = fields(rows_by_hand(), proximal=np.array([-9.0, -0.6, -1.1, -2.1]), reference=None)
    listed = {name: each.tolist() if name == "temperature" else unbind(each) for name, each in data.items()}
    assert listed == {
        "input_ids": [[3, 2], [5, 6, 7, 8, 9, 4], [3]],
        "position_ids": [[0, 1], [0, 1, 2, 3, 4, 5], [0]],
        "loss_mask": [[1, 0], [0, 1, 1, 0, 1, 0], [0]],
        "entry_parents": [[0], [1, 2, 4], []],
        "entry_logprobs": [[-3.0], [-0.5, -1.0, -2.0], []],
        "entry_advantages": [[2.0], [1.0, 1.0, -1.0], []],
        "entry_weights": [[0.25], [0.25] * 3, []],
        "entry_sequences": [[2], [0, 0, 1], []],
        "entry_units": [[7], [-1] * 3, []],
        "entry_proximal": [[-9.0], [pytest.approx(-0.6), pytest.approx(-1.1), pytest.approx(-2.1)], []],
        "temperature": [0.5, 1.0, 0.5],
    }


def unbind(nested: torch.Tensor) -> list[list[float]]:
    return [each.tolist() for each in nested.unbind()]


def test_values_come_back_for_the_entries_in_the_order_of_the_rows() -> None:
    rows = share(make_rows(play(1), {t.key: 1.0 for each in play(1) for t in each.transitions}), 3)
    found = entry_values(fields(rows)["input_ids"], rows)
    assert found.tolist() == [float(row.tokens[p]) for row in rows for p in row.parents.tolist()]


def test_values_of_rows_in_another_order_are_refused() -> None:
    rows = rows_by_hand()
    with pytest.raises(TrainingError, match="3 rows of 9 tokens for 3 rows of 9, or in another order"):
        entry_values(fields(rows)["input_ids"], rows[::-1])


def test_an_array_of_another_length_and_no_rows_at_all_are_refused() -> None:
    with pytest.raises(TrainingError, match="proximal has 3 numbers for 4 entries"):
        fields(rows_by_hand(), proximal=np.zeros(3))
    with pytest.raises(TrainingError, match="no rows to make a batch of"):
        fields([])
