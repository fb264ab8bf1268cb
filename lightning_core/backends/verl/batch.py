"""Rows as the TensorDict that verl's workers take, and what they give back as values of entries.

verl cuts a batch into parts for its ranks, into mini-batches and micro-batches, and puts them in another
order, row by row. So everything a row has must travel in a field of that row: nested tensors, of tokens as
verl wants them, of spans and of entries as our loss reads them (`loss`). What a span says stands once there;
`flat` spreads it over the entries where the loss is taken. verl makes of each field of each row a tensor of
its own when it cuts, so there are no more fields than the loss needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_core.backends.rows import SPAN, Row, join_spans
from lightning_core.errors import TrainingError
from lightning_core.experience.trajectories import Floats

if TYPE_CHECKING:
    from tensordict import TensorDict

OF_SPANS: Final = "span_"
"""How the fields begin that have one number for each span: those of `SPAN`."""
OF_ENTRIES: Final = "entry_"
"""How the fields begin that have one number for each entry."""
GRAMMARS: Final = "grammars"
_AT_ONCE: Final = 256
"""Rows; of some hundred tokens each, what is worked out of so many is about a megabyte."""


class BatchMemory:
    """Where batches lie, one at a time: a batch is good until the next one is made in the same memory.

    A large array gets fresh pages from the system, and gives them back, each time it is made. On a virtual
    machine that costs more than filling them.
    """

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: type[np.generic]) -> NDArray[Any]:
        """(size,) of what was kept under that name, or of more; whatever stands in it."""
        if name not in self._kept or len(self._kept[name]) < size:
            self._kept.pop(name, None)
            self._kept[name] = np.empty(size + size // 8, dtype)
        return self._kept[name][:size]


def to_batch(
    rows: Sequence[Row],
    *,
    memory: BatchMemory | None = None,
    proximal: Floats | None = None,
    reference: Floats | None = None,
    coefficients: Floats | None = None,
    targets: Floats | None = None,
    fresh: Floats | None = None,
) -> TensorDict:
    """The rows as verl's workers take them: `fields`, with one number as temperature where all rows share it.

    With a number verl may use its fused kernels, and of 1 it spares a copy of the logits. In `memory` the
    batch is good until the next one is made there. All other arguments are (E,), for the entries in the order
    of the rows; `loss` says which loss needs which.
    """
    from tensordict import TensorDict
    from tensordict.tensorclass import NonTensorData

    more = {"proximal": proximal, "reference": reference, "coefficients": coefficients}
    batch: dict[str, Any] = {**fields(rows, memory, **more, targets=targets, fresh=fresh)}
    shared = {row.temperature for row in rows}
    if len(shared) == 1:
        batch["temperature"] = NonTensorData(shared.pop())
    return TensorDict(batch, batch_size=[len(rows)])


def fields(
    rows: Sequence[Row], memory: BatchMemory | None = None, **more: Floats | None
) -> dict[str, torch.Tensor]:
    """N rows as tensors. Nested ones are jagged: (N, L_i) of tokens, (N, S_i) of spans, (N, E_i) of entries.

        input_ids, position_ids     of tokens
        loss_mask                   whether a token's output is read
        span_*                      `SPAN`, for the spans in the order of the rows; units if there are any
        entry_logprobs              as recorded
        entry_*                     what `more` gives: (E,) each, for the entries in the order of the rows;
                                    what is None is left out
        grammars                    (N, B_i) bytes: of each row that has any, the spans' grammars as JSON;
                                    left out if no row has
        temperature                 (N,)

    Raises TrainingError if there are no rows, or for an array of another length.
    """
    if not rows:
        raise TrainingError("there are no rows to make a batch of; make_rows found nothing that carries loss")
    lengths = np.array([len(row.tokens) for row in rows])
    sizes = np.array([len(row.spans) for row in rows])
    counts = np.array([len(row.logprobs) for row in rows])
    memory, tokens = memory or BatchMemory(), int(lengths.sum())
    ids, positions = (memory.take(name, tokens, np.int64) for name in ("input_ids", "position_ids"))
    np.concatenate([row.tokens for row in rows], out=ids)
    ramp = np.arange(lengths.max())
    np.concatenate([ramp[:length] for length in lengths.tolist()], out=positions)
    read = memory.take("loss_mask", tokens, np.bool_)
    read[:] = False
    for _, parents in _parents(rows):
        read[parents] = True
    of_tokens = {"input_ids": ids, "position_ids": positions, "loss_mask": read}
    spans = join_spans(rows)
    named = [name for name in SPAN.names or () if name != "unit" or (spans["unit"] >= 0).any()]
    logprobs = memory.take("logprobs", int(counts.sum()), np.float32)
    of_entries = {"logprobs": np.concatenate([row.logprobs for row in rows], out=logprobs)}
    of_entries |= {name: _checked(name, each, counts) for name, each in more.items() if each is not None}
    written = [json.dumps(row.grammars).encode() if row.grammars else b"" for row in rows]
    grammars = np.frombuffer(bytearray().join(written), np.uint8)
    held = {GRAMMARS: _jagged(grammars, np.array([len(text) for text in written]))} if len(grammars) else {}
    return {
        **held,
        **{name: _jagged(values, lengths) for name, values in of_tokens.items()},
        **{f"{OF_SPANS}{name}": _jagged(np.ascontiguousarray(spans[name]), sizes) for name in named},
        **{f"{OF_ENTRIES}{name}": _jagged(values, counts) for name, values in of_entries.items()},
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
    given = output.values().detach().float().cpu().numpy()
    values = np.empty(sum(len(row.logprobs) for row in rows), dtype=np.float32)
    for entries, parents in _parents(rows):
        np.take(given, parents, out=values[entries], mode="clip")  # all are within; any other mode copies
    return values


def parents_of(first: torch.Tensor, count: torch.Tensor, starts: torch.Tensor, entries: int) -> torch.Tensor:
    """(E,) int64: the index of each entry's parent in all tokens of some rows, one row after another.

    Of each span (S,): its `first` and `count` as in `SPAN`, and where its row starts.
    """
    shift = (starts + first - count.cumsum(0) + count).repeat_interleave(count, output_size=entries)
    return shift.add_(torch.arange(entries, device=shift.device))


def flat(data: Mapping[str, Any], name: str) -> torch.Tensor | None:
    """(E,) the field of that name, row after row, spread over the entries; None if it was not given."""
    if f"{OF_ENTRIES}{name}" in data.keys():  # noqa: SIM118
        return _values(data[f"{OF_ENTRIES}{name}"])
    if f"{OF_SPANS}{name}" in data.keys():  # noqa: SIM118
        entries = len(_values(data[f"{OF_ENTRIES}logprobs"]))  # on a GPU, adding the counts up would wait
        count = _values(data[f"{OF_SPANS}count"])
        return _values(data[f"{OF_SPANS}{name}"]).repeat_interleave(count, output_size=entries)
    return None


def _values(nested: Any) -> torch.Tensor:
    values: torch.Tensor = nested.values()
    return values


def _parents(rows: Sequence[Row]) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Some rows at a time: which entries are theirs, and `parents_of` them.

    What a processor keeps at hand is read and written much faster than what it must fetch.
    """
    token = entry = 0
    for at in range(0, len(rows), _AT_ONCE):
        some = rows[at : at + _AT_ONCE]
        ends = token + np.cumsum([len(row.tokens) for row in some])
        starts = np.repeat(ends - [len(row.tokens) for row in some], [len(row.spans) for row in some])
        spans = join_spans(some)
        first, count = torch.from_numpy(spans["first"]), torch.from_numpy(spans["count"])
        end = entry + sum(len(row.logprobs) for row in some)
        yield slice(entry, end), parents_of(first, count, torch.from_numpy(starts), end - entry).numpy()
        token, entry = int(ends[-1]), end


def _checked(name: str, values: Floats, counts: NDArray[np.int64]) -> Floats:
    if len(values) != counts.sum():
        raise TrainingError(f"{name} has {len(values)} numbers for {counts.sum()} entries; give one for each")
    return np.asarray(values, dtype=np.float32)


def _jagged(values: NDArray[Any], lengths: NDArray[np.int64]) -> torch.Tensor:
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    offsets[1:] = torch.from_numpy(np.cumsum(lengths))
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(torch.from_numpy(values), offsets)
    return nested
