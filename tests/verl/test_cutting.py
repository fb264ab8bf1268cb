"""A batch survives what verl does with it: parts for ranks, mini-batches, micro-batches, and the way back."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")
pytest.importorskip("tensordict", reason="verl lives in an environment of its own: make test-verl")

import numpy as np
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.seqlen_balancing import rearrange_micro_batches, restore_dynamic_batch

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.rows import Row, make_rows, share
from lightning_core.backends.verl.batch import entry_values, to_batch
from tests.verl.recorded import parents, play

RANKS = 3


@pytest.fixture
def rows() -> list[Row]:
    batch = play(2)
    rows = share(make_rows(batch, GRPO().weigh(batch)), RANKS)
    assert any(row.is_padding for row in rows), "padding must survive too"
    return rows


@pytest.fixture
def batch(rows: list[Row]) -> TensorDict:
    """With a number of each entry, counted through."""
    count = sum(len(row.logprobs) for row in rows)
    return to_batch(rows, proximal=np.arange(count, dtype=np.float32))


def read(parts: Iterable[TensorDict]) -> list[tuple[object, ...]]:
    """The rows in these parts, each with all that is said of it."""
    found = []
    for part in parts:
        names = sorted(name for name, value in part.items() if getattr(value, "is_nested", False))
        assert set(names) >= {"input_ids", "position_ids", "loss_mask", "span_first", "entry_proximal"}
        columns = [[tuple(each.tolist()) for each in part[name].unbind()] for name in names]
        found += list(zip(*columns, part["temperature"].tolist(), strict=True))
    return found


def test_ranks_are_given_the_shares_that_were_made_for_them(rows: list[Row], batch: TensorDict) -> None:
    parts = tensordict_utils.chunk_tensordict(batch, RANKS)
    size = len(rows) // RANKS
    for rank, part in enumerate(parts):
        assert [row[-1] for row in read([part])] == pytest.approx(
            [row.temperature for row in rows[rank * size : (rank + 1) * size]]
        )
        assert part["input_ids"].offsets().diff().tolist() == [
            len(row.tokens) for row in rows[rank * size : (rank + 1) * size]
        ]
    assert read(parts) == read([batch])
    assert read([tensordict_utils.concat_tensordict(parts)]) == read([batch])


def test_mini_batches_in_another_order_keep_each_row_whole(rows: list[Row], batch: TensorDict) -> None:
    parts = list(
        tensordict_utils.make_iterator(
            batch, len(rows) // RANKS, epochs=1, seed=3, dataloader_kwargs={"shuffle": True}
        )
    )
    assert read(parts) != read([batch])
    assert sorted(read(parts)) == sorted(read([batch]))


def test_micro_batches_by_tokens_keep_each_row_whole_and_give_values_back_in_order(
    rows: list[Row], batch: TensorDict
) -> None:
    parts, places = rearrange_micro_batches(batch, max_token_len=150)
    assert len(parts) > 2
    assert [place for part in places for place in part] != list(range(len(rows)))
    assert sorted(read(parts)) == sorted(read([batch]))
    output = tensordict_utils.concat_nested_tensors([part["input_ids"].float() for part in parts])
    found = entry_values(restore_dynamic_batch(output, places), rows)
    assert found.tolist() == [float(row.tokens[p]) for row in rows for p in parents(row)]


def test_a_batch_comes_whole_to_another_process(batch: TensorDict) -> None:
    assert read([pickle.loads(pickle.dumps(batch))]) == read([batch])
    assert read([pickle.loads(pickle.dumps(batch.consolidate()))]) == read([batch])


def test_one_temperature_is_one_number_that_survives_too(rows: list[Row]) -> None:
    batch = to_batch([row for row in rows if row.temperature == 1.0])
    parts, _ = rearrange_micro_batches(batch, max_token_len=150)
    for part in [batch, *parts, *tensordict_utils.chunk_tensordict(batch, 1)]:
        assert part["temperature"] == 1.0
