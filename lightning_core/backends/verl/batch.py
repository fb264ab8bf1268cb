"""Rows as the TensorDict that verl's workers take, and what they give back as values of entries.

verl cuts a batch into parts for its ranks, into mini-batches and micro-batches, and puts them in another
order, row by row. So everything an entry has must travel in a field of its row: nested tensors, of tokens as
verl wants them, of entries as our loss reads them (`loss`). verl makes of each field of each row a tensor of
its own when it cuts, so there are no more fields than the loss needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_core.backends.verl.rows import Row
from lightning_core.errors import TrainingError
from lightning_core.trajectories import Floats

if TYPE_CHECKING:
    from tensordict import TensorDict

OF_ENTRIES = ("parents", "logprobs", "advantages", "weights", "sequences", "units")
"""What each row says of its entries; in a batch the names begin with PREFIX."""
PREFIX = "entry_"


def to_batch(
    rows: Sequence[Row],
    *,
    proximal: Floats | None = None,
    reference: Floats | None = None,
    coefficients: Floats | None = None,
    targets: Floats | None = None,
    values: Floats | None = None,
) -> TensorDict:
    """The rows as verl's workers take them: `fields`, with one number as temperature where all rows share it.

    With a number verl may use its fused kernels, and of 1 it spares a copy of the logits. All arguments are
    (E,), for the entries in the order of the rows; `loss` says which loss needs which.
    """
    from tensordict import TensorDict
    from tensordict.tensorclass import NonTensorData

    more = {"proximal": proximal, "reference": reference, "coefficients": coefficients}
    batch: dict[str, Any] = {**fields(rows, **more, targets=targets, values=values)}
    shared = {row.temperature for row in rows}
    if len(shared) == 1:
        batch["temperature"] = NonTensorData(shared.pop())
    return TensorDict(batch, batch_size=[len(rows)])


def fields(rows: Sequence[Row], **more: Floats | None) -> dict[str, torch.Tensor]:
    """N rows as tensors. Nested ones are jagged, (N, L_i) of tokens or (N, E_i) of entries:

        input_ids, position_ids     of tokens
        loss_mask                   1 at each token whose output is read
        entry_*                     `OF_ENTRIES`, and what `more` gives: (E,) each, for the entries in the
                                    order of the rows; what is None is left away
        temperature                 (N,)

    Raises TrainingError if there are no rows, or for an array of another length.
    """
    if not rows:
        raise TrainingError("there are no rows to make a batch of; make_rows found nothing that carries loss")
    lengths = np.array([len(row.tokens) for row in rows])
    counts = np.array([len(row.parents) for row in rows])
    read = np.zeros(lengths.sum(), dtype=np.int64)
    read[parents_of(rows)] = 1
    ramp = np.arange(lengths.max())
    of_tokens = {
        "input_ids": np.concatenate([row.tokens for row in rows]),
        "position_ids": np.concatenate([ramp[:length] for length in lengths.tolist()]),
        "loss_mask": read,
    }
    of_entries = {name: np.concatenate([getattr(row, name) for row in rows]) for name in OF_ENTRIES}
    of_entries |= {name: _checked(name, each, counts) for name, each in more.items() if each is not None}
    return {
        **{name: _jagged(values, lengths) for name, values in of_tokens.items()},
        **{f"{PREFIX}{name}": _jagged(values, counts) for name, values in of_entries.items()},
        "temperature": torch.tensor([row.temperature for row in rows], dtype=torch.float32),
    }


def entry_values(output: Any, rows: Sequence[Row]) -> Floats:
    """(E,) what a worker gave at each entry's parent, in the order of the rows.

    `output` is nested, (N, L_i), of the rows in the order in which they were sent; of log-probabilities, a
    token has that of the next one. Raises TrainingError if it is of other rows.
    """
    found = output.offsets().diff().tolist()
    if found != [len(row.tokens) for row in rows]:
        raise TrainingError(
            f"verl gave back {len(found)} rows of {sum(found)} tokens for {len(rows)} rows of "
            f"{sum(len(row.tokens) for row in rows)}, or in another order; this is a version of verl that "
            "this backend does not know"
        )
    values: Floats = output.values().detach().float().cpu().numpy()[parents_of(rows)]
    return values


def parents_of(rows: Sequence[Row]) -> NDArray[np.int64]:
    """(E,) index of each entry's parent in all tokens of the rows, one after another."""
    lengths = np.array([len(row.tokens) for row in rows])
    counts = np.array([len(row.parents) for row in rows])
    parents = np.concatenate([row.parents for row in rows])
    parents += np.repeat(np.cumsum(lengths) - lengths, counts)
    return parents


def flat(data: Mapping[str, Any], name: str) -> torch.Tensor | None:
    """(E,) the entries' field of that name, row after row; None if it was not given."""
    return data[f"{PREFIX}{name}"].values() if f"{PREFIX}{name}" in data.keys() else None  # noqa: SIM118


def _checked(name: str, values: Floats, counts: NDArray[np.int64]) -> Floats:
    if len(values) != counts.sum():
        raise TrainingError(f"{name} has {len(values)} numbers for {counts.sum()} entries; give one for each")
    return np.asarray(values, dtype=np.float32)


def _jagged(values: NDArray[Any], lengths: NDArray[np.int64]) -> torch.Tensor:
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    offsets[1:] = torch.from_numpy(np.cumsum(lengths))
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(torch.from_numpy(values), offsets)
    return nested
