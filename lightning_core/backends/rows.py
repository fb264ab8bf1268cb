"""A batch as rows: what engines of plain sequences can take, such as verl's.

Their attention knows plain sequences, not trees. So a row is one path through the token tree: a transition
whose tokens begin with all of an earlier one's (its prompt and what was sampled) goes on in that one's row,
and branches get rows of their own, with their prefix repeated. However it is cut, each transition is a span
of one row: its sampled tokens, one after another, each of which is a loss entry and carries loss once. verl
gives the log-probability of every token of a row, and the loss reads it at the entries' parents.

A chain of transitions is found as the tree is: sorted, a sequence stands right before those that begin with
it. What is one number for a transition stays one, so that the cost of a transition is that of its tokens.
Only numpy here: the driver needs no tensors for this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_core.experience.trajectories import (
    Floats,
    MergeReport,
    check_tokens,
    find_unmerged,
    trained_transitions,
)
from lightning_core.records.sequences import Spelt, join, spell_each
from lightning_core.records.types import Key, Trajectory, Transition

Tokens = NDArray[np.uint32]
Spans = NDArray[np.void]
SPAN: Final = np.dtype(
    [
        ("unit", "i8"),
        ("first", "i4"),
        ("count", "i4"),
        ("sequence", "i4"),
        ("advantage", "f4"),
        ("weight", "f4"),
    ],
    align=True,
)
"""The facts of each transition of a row:

    unit        unit of the transition; -1 where it has none
    first       index of the token after which its first token was sampled
    count       how many tokens were sampled, one after another
    sequence    number of the transition in the batch
    advantage   of each of the tokens
    weight      of each of them: share of the batch's loss
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of L tokens for one forward pass, and the S transitions with E loss entries in it."""

    tokens: Tokens
    """(L,) token ids, big-endian as they were spelt."""
    spans: Spans
    """(S,) of `SPAN`."""
    logprobs: Floats
    """(E,) as recorded when they were sampled, span after span."""
    temperature: float
    """Sampled with; 1 where it was greedy."""
    keys: tuple[Key, ...]
    """(S,) the transitions."""
    grammars: tuple[str | None, ...] = ()
    """(S,) what each was held to; empty if none was held to anything."""

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
    of its own, for comparison. Raises TrainingError for a transition without a prompt, whose logprobs do not
    match its tokens.
    """
    units = units or {}
    replies = [t for t in trained_transitions(trajectories) if t.key in weights]
    for reply in replies:
        check_tokens(reply)
    spelt = spell_each([t.prompt_ids for t in replies], [t.completion_ids for t in replies])
    temperatures = [t.temperature or 1.0 for t in replies]
    chains = _chains(spelt, temperatures, merge)
    order = list(chain.from_iterable(chains))
    ordered = [replies[i] for i in order]
    return _cut(
        chains,
        spelt,
        temperatures,
        [t.key for t in replies],
        firsts=[len(t.prompt_ids) - 1 for t in ordered],
        counts=[len(t.completion_ids) for t in ordered],
        logprobs=join(*(t.logprobs for t in ordered)),
        advantages=[t.advantage or 0.0 for t in ordered],
        weights=[weights[t.key] for t in ordered],
        units=[units.get(t.key, -1) for t in ordered],
        grammars=[t.grammar for t in ordered],
    )


def make_state_rows(states: Sequence[Transition], *, merge: bool = True) -> list[Row]:
    """The prompts alone, for a critic: each transition has one entry, at the last token of its prompt.

    The states weigh the same, 1 together. What is recorded and learnt of them is the caller's to hand over.
    Raises TrainingError for a transition without a prompt.
    """
    for state in states:
        check_tokens(replace(state, completion_ids=(), logprobs=()))
    spelt = spell_each([t.prompt_ids for t in states], [()] * len(states))
    temperatures = [1.0] * len(states)
    chains = _chains(spelt, temperatures, merge)
    return _cut(
        chains,
        spelt,
        temperatures,
        [t.key for t in states],
        firsts=[len(states[i].prompt_ids) - 1 for i in chain.from_iterable(chains)],
        counts=[1] * len(states),
        logprobs=np.zeros(len(states), dtype=np.float32),
        advantages=[0.0] * len(states),
        weights=[1 / max(len(states), 1)] * len(states),
        units=[-1] * len(states),
    )


def join_spans(rows: Iterable[Row]) -> Spans:
    """(S,) the spans of all rows, one row after another."""
    return np.frombuffer(bytearray().join(row.spans.data for row in rows), SPAN)


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
    return Row(like.tokens[:1], np.empty(0, SPAN), np.empty(0, np.float32), like.temperature, ())


def _chains(spelt: Spelt, temperatures: Sequence[float], merge: bool) -> list[list[int]]:
    """The numbers of the sequences, those together of which each begins with the one before."""
    if not merge:
        return [[number] for number in range(len(spelt.texts))]
    chains: list[list[int]] = []
    for alike in _alike(spelt, temperatures):
        ordered = spelt.in_order(alike)
        chains.append(ordered[:1])
        for before, number in pairwise(ordered):
            if spelt.begins(before, number):
                chains[-1].append(number)
            else:
                chains.append([number])
    return chains


def _alike(spelt: Spelt, temperatures: Sequence[float]) -> Iterable[list[int]]:
    """The numbers of the sequences that begin alike, as far as the shortest of all goes.

    Of others, none begins another. Where tasks differ from their beginnings, these are few and lie close
    together, so that sorting them costs the same in a batch of any size.
    """
    shortest = min(spelt.sizes, default=0)
    begin = {id(text): hash(text[:shortest]) for text in spelt.texts}  # equal hashes do no harm
    alike: defaultdict[tuple[float, int], list[int]] = defaultdict(list)
    for number, (text, temperature) in enumerate(zip(spelt.texts, temperatures, strict=True)):
        alike[temperature, begin[id(text)]].append(number)
    return alike.values()


def _cut(
    chains: Sequence[Sequence[int]],
    spelt: Spelt,
    temperatures: Sequence[float],
    keys: Sequence[Key],
    *,
    firsts: Sequence[int],
    counts: Sequence[int],
    logprobs: Floats,
    advantages: Sequence[float],
    weights: Sequence[float],
    units: Sequence[int],
    grammars: Sequence[str | None] = (),
) -> list[Row]:
    """A row of each chain, whose last sequence holds the others.

    What has a name is in the order of the chains: of each sequence the parent of its first entry, and how
    many follow, one token after the other; `logprobs` has one for each entry.
    """
    spans = np.empty(len(counts), SPAN)
    spans["first"], spans["count"] = firsts, counts
    spans["advantage"], spans["weight"], spans["unit"] = advantages, weights, units
    spans["sequence"] = list(chain.from_iterable(chains))
    entries = [0, *np.cumsum(spans["count"], dtype=np.int64).tolist()]
    rows, at = [], 0
    for each in chains:
        end = at + len(each)
        held = tuple(grammars[at:end])
        rows.append(
            Row(
                np.frombuffer(spelt.texts[each[-1]], ">u4", spelt.sizes[each[-1]] // 4),
                spans[at:end],
                logprobs[entries[at] : entries[end]],
                temperatures[each[-1]],
                tuple(keys[number] for number in each),
                held if any(grammar is not None for grammar in held) else (),
            )
        )
        at = end
    return rows
