"""A batch as the service takes it: one datum for each row, with what each of its tokens is to learn.

Row and datum are shifted by one: at position j the model has read token j, and its target is token j + 1. So
the entry of a token that was sampled after token `parent` stands at position `parent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_core.backends.rows import Row
from lightning_core.backends.tinker.settings import Reduction
from lightning_core.experience.trajectories import Floats, Ints


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence of L + 1 tokens; all arrays are (L,), and 0 where a token carries no loss."""

    tokens: Ints
    targets: Ints
    anchors: Floats
    """Log-probabilities that the ratio is to."""
    advantages: Floats
    mask: Floats
    """1 where a token carries loss."""


@dataclass(frozen=True, slots=True)
class RowEntries:
    """The E loss entries of a row."""

    parents: Ints
    """(E,) position of each in its datum."""
    advantages: Floats
    weights: Floats
    sequences: Ints
    units: Ints


def row_entries(row: Row) -> RowEntries:
    """The loss entries of a row, span after span, in the order of its `logprobs`."""
    spans = row.spans
    counts = spans["count"].astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(starts, counts)
    return RowEntries(
        parents=np.repeat(spans["first"].astype(np.int64), counts) + within,
        advantages=np.repeat(spans["advantage"], counts),
        weights=np.repeat(spans["weight"], counts),
        sequences=np.repeat(spans["sequence"].astype(np.int64), counts),
        units=np.repeat(spans["unit"], counts),
    )


def make_data(
    rows: Sequence[Row], anchors: Sequence[Floats], advantages: Sequence[Floats], reduction: Reduction
) -> list[Datum]:
    """A datum of each row, whose advantages hold the loss weights.

    `anchors` and `advantages` are (E,) of each row. Where the service takes means, advantages are made
    larger by what it divides by: the tokens with loss of the row, and the rows.
    """
    data = []
    for row, anchor, advantage in zip(rows, anchors, advantages, strict=True):
        parents = row_entries(row).parents
        factor = float(len(parents) * len(rows)) if reduction == "mean" else 1.0
        tokens = row.tokens.astype(np.int64)
        size = len(tokens) - 1
        data.append(
            Datum(
                tokens=tokens[:-1],
                targets=tokens[1:],
                anchors=_spread(anchor, parents, size),
                advantages=_spread(advantage * np.float32(factor), parents, size),
                mask=_spread(np.ones(len(parents), dtype=np.float32), parents, size),
            )
        )
    return data


def _spread(values: NDArray[np.floating], places: Ints, size: int) -> Floats:
    spread = np.zeros(size, dtype=np.float32)
    spread[places] = values
    return spread
