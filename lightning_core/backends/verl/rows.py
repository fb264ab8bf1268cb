"""A batch as rows: what verl's engines can take.

Their attention knows plain sequences, not trees. So a row is one path through the token tree: a transition
whose tokens begin with all of an earlier one's (its prompt and what was sampled) goes on in that one's row,
and branches get rows of their own, with their prefix repeated. However it is cut, each sampled token carries
loss once, as an entry: "after token `parent` of this row, the next one was sampled, with this log-probability
and advantage". verl gives the log-probability of every token of a row, and the loss reads it at the parents.

A chain of transitions is found as the tree is: sorted, a sequence stands right before those that begin with
it. Everything is laid out for the whole batch at once and then cut, so the cost of a transition is that of
its numbers. Only numpy here: the driver needs no tensors for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_core.trajectories import (
    Floats,
    Ints,
    MergeReport,
    check_tokens,
    find_unmerged,
    trained_transitions,
)
from lightning_core.types import Key, Trajectory, Transition


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of L tokens for one forward pass, and the E loss entries that hang on it."""

    tokens: Ints
    """(L,) token ids."""
    parents: Ints
    """(E,) index of the token after which the entry's token was sampled, which is the next one."""
    logprobs: Floats
    """(E,) as recorded when it was sampled."""
    advantages: Floats
    """(E,)"""
    weights: Floats
    """(E,) share of the batch's loss."""
    sequences: Ints
    """(E,) the number of the entry's transition in the batch."""
    units: Ints
    """(E,) the unit of each entry's transition; -1 where it has none."""
    temperature: float
    """Sampled with; 1 where it was greedy."""
    keys: tuple[Key, ...]
    """The transitions in this row, in the order of their entries."""

    @property
    def is_padding(self) -> bool:
        """Whether it is here to make the ranks' shares equal. Without entries it counts nowhere."""
        return not self.keys


def make_rows(
    trajectories: Sequence[Trajectory],
    weights: Mapping[Key, float],
    *,
    units: Mapping[Key, int] | None = None,
    merge: bool = True,
) -> list[Row]:
    """The transitions that carry loss and have a weight, as rows.

    `weights` gives the loss weight of one token of each transition. `merge=False` gives each transition a row
    of its own, for comparison. Raises TrainingError for a transition without a prompt, or whose logprobs do
    not match its tokens.
    """
    units = units or {}
    replies = [t for t in trained_transitions(trajectories) if t.key in weights]
    for reply in replies:
        check_tokens(reply)
    layout = _Layout.of(
        [(t.prompt_ids, t.completion_ids) for t in replies],
        lengths=[len(t.completion_ids) for t in replies],
        temperatures=[t.temperature or 1.0 for t in replies],
        merge=merge,
    )
    ordered = [replies[i] for i in layout.order]
    return layout.cut(
        ordered,
        logprobs=_flat((t.logprobs for t in ordered), np.float32),
        advantages=[t.advantage or 0.0 for t in ordered],
        weights=[weights[t.key] for t in ordered],
        units=[units.get(t.key, -1) for t in ordered],
    )


def make_state_rows(states: Sequence[Transition], *, merge: bool = True) -> list[Row]:
    """The prompts alone, for a critic: each transition has one entry, at the last token of its prompt.

    The states weigh the same, 1 together. What is recorded and learnt of them is the caller's to hand over.
    Raises TrainingError for a transition without a prompt.
    """
    for state in states:
        check_tokens(replace(state, completion_ids=(), logprobs=()))
    layout = _Layout.of(
        [(t.prompt_ids,) for t in states],
        lengths=[1] * len(states),
        temperatures=[1.0] * len(states),
        merge=merge,
        beyond=1,
    )
    nothing = [0.0] * len(states)
    return layout.cut(
        [states[i] for i in layout.order],
        logprobs=np.array(nothing, dtype=np.float32),
        advantages=nothing,
        weights=[1 / len(states)] * len(states) if states else [],
        units=[-1] * len(states),
    )


def share(rows: Sequence[Row], ranks: int) -> list[Row]:
    """The rows in an order whose `ranks` equal contiguous parts take about the same work.

    Rows of like length are dealt together, one to each rank, the longest to the rank with the least so far.
    So no rank is ahead of another by more than one row is longer than another. Padding rows of one token fill
    up where the count does not divide. Work is tokens and squared tokens, each as a share of the batch's.
    """
    if not rows:
        return []
    rows = [*rows, *[_padding(rows[0])] * (-len(rows) % ranks)]
    lengths = np.array([len(row.tokens) for row in rows], dtype=np.float64)
    work = lengths / lengths.sum() + lengths**2 / (lengths**2).sum()
    parts: list[list[Row]] = [[] for _ in range(ranks)]
    loads = np.zeros(ranks)
    for dealt in np.argsort(-lengths, kind="stable").reshape(-1, ranks):
        takers = np.argsort(loads, kind="stable")
        loads[takers] += work[dealt]
        for rank, index in zip(takers.tolist(), dealt.tolist(), strict=True):
            parts[rank].append(rows[index])
    return list(chain.from_iterable(parts))


def report_rows(trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> MergeReport:
    """Compare rows with the transitions they were made from. Here the last token is passed too."""
    kept = {key for row in rows for key in row.keys}
    before = sum(
        len(t.prompt_ids) + len(t.completion_ids) for t in trained_transitions(trajectories) if t.key in kept
    )
    after = sum(len(row.tokens) for row in rows if not row.is_padding)
    return MergeReport(before, after, tuple(u for t in trajectories for u in find_unmerged(t)))


def _padding(like: Row) -> Row:
    """One token, and nothing learnt from it."""
    ints, floats = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    return Row(like.tokens[:1], ints, floats, floats, floats, ints, ints, like.temperature, ())


@dataclass(frozen=True, slots=True)
class _Layout:
    """N sequences in depth-first order, and where the chains among them end."""

    tokens: Ints
    """All tokens, sequence by sequence in the order they were given."""
    spans: Ints
    """(N, 2) where each sequence begins and ends in `tokens`."""
    lengths: Ints
    """(N,) entries of each sequence; they are at its end."""
    temperatures: Sequence[float]
    beyond: int
    """How far the parent of a sequence's last entry is beyond the last token but one."""
    order: list[int]
    """The sequences sorted, as the numbers they were given in."""
    chains: list[tuple[int, int]]
    """First and one beyond the last of each row's sequences, as places in `order`."""

    @classmethod
    def of(
        cls,
        parts: Sequence[tuple[Sequence[int], ...]],
        *,
        lengths: Sequence[int],
        temperatures: Sequence[float],
        merge: bool,
        beyond: int = 0,
    ) -> _Layout:
        """`parts` are those that each sequence is put together of."""
        tokens = _flat(chain.from_iterable(parts), np.int64)
        sizes = np.array([sum(len(part) for part in each) for each in parts], dtype=np.int64)
        ends = np.cumsum(sizes)
        spans = np.stack((ends - sizes, ends), axis=1)
        big = tokens.astype(">u4").tobytes()  # big-endian bytes compare as the numbers do
        spelt = [big[4 * start : 4 * end] for start, end in spans.tolist()]
        order = sorted(range(len(spelt)), key=lambda i: (temperatures[i], spelt[i]))
        breaks = [
            place + 1
            for place, (one, next_one) in enumerate(pairwise(order))
            if not (
                merge
                and temperatures[one] == temperatures[next_one]
                and spelt[next_one].startswith(spelt[one])
            )
        ]
        edges = [0, *breaks, len(order)] if order else []
        return cls(
            tokens,
            spans,
            np.array(lengths, dtype=np.int64),
            temperatures,
            beyond,
            order,
            list(pairwise(edges)),
        )

    def cut(
        self,
        ordered: Sequence[Transition],
        *,
        logprobs: Floats,
        advantages: Sequence[float],
        weights: Sequence[float],
        units: Sequence[int],
    ) -> list[Row]:
        """A row of each chain. All arguments are in `order`, `logprobs` one for each entry."""
        lengths = self.lengths[self.order]
        sizes = (self.spans[:, 1] - self.spans[:, 0])[self.order]
        ends = np.cumsum(lengths)
        firsts = sizes - lengths - 1 + self.beyond  # parent of the first entry
        parents = np.arange(len(logprobs)) + np.repeat(firsts - (ends - lengths), lengths)
        spread = [np.repeat(np.array(each, dtype=np.float32), lengths) for each in (advantages, weights)]
        sequences = np.repeat(np.array(self.order, dtype=np.int64), lengths)
        unit = np.repeat(np.array(units, dtype=np.int64), lengths)
        stops = [0, *ends.tolist()]
        keys = [t.key for t in ordered]
        return [
            Row(
                tokens,
                parents[span],
                logprobs[span],
                spread[0][span],
                spread[1][span],
                sequences[span],
                unit[span],
                temperature,
                tuple(keys[start:end]),
            )
            for start, end, tokens, temperature in self._rows()
            for span in (slice(stops[start], stops[end]),)
        ]

    def _rows(self) -> Iterator[tuple[int, int, Ints, float]]:
        """Each chain with the tokens of its last sequence, which holds the others."""
        spans = self.spans.tolist()
        for start, end in self.chains:
            last = self.order[end - 1]
            yield start, end, self.tokens[slice(*spans[last])], self.temperatures[last]


def _flat(parts: Iterable[Sequence[float]], dtype: type[np.generic]) -> NDArray[Any]:
    """All numbers of all parts, one after another."""
    return np.fromiter(chain.from_iterable(parts), dtype=dtype)
