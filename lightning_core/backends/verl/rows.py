"""A batch as rows: what verl's engines can take.

Their attention knows plain sequences, not trees. So a row is one path through the token tree: a transition
whose tokens begin with all of an earlier one's (its prompt and what was sampled) goes on in that one's row,
and branches get rows of their own, with their prefix repeated. However it is cut, each sampled token carries
loss once, as an entry: "after token `parent` of this row, the next one was sampled, with this log-probability
and advantage". verl gives the log-probability of every token of a row, and the loss reads it at the parents.

A chain of transitions is found as the tree is: sorted, a sequence stands right before those that begin with
it. What entries say is laid out for the whole batch at once and then cut, so that the cost of a transition is
that of its numbers. Only numpy here: the driver needs no tensors for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

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
    spelt = [_spell(t.prompt_ids, t.completion_ids) for t in replies]
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
        logprobs=np.fromiter(chain.from_iterable(t.logprobs for t in ordered), np.float32),
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
    spelt = [_spell(t.prompt_ids) for t in states]
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


def _spell(*parts: Sequence[int]) -> bytes:
    """The token ids as big-endian bytes, which compare as the numbers do."""
    return np.fromiter(chain(*parts), ">u4", sum(map(len, parts))).tobytes()


def _chains(spelt: Sequence[bytes], temperatures: Sequence[float], merge: bool) -> list[list[int]]:
    """The numbers of the sequences, those together of which each begins with the one before."""
    chains: list[list[int]] = []
    for number in sorted(range(len(spelt)), key=lambda i: (temperatures[i], spelt[i])):
        last = chains[-1][-1] if chains else number
        goes_on = temperatures[number] == temperatures[last] and spelt[number].startswith(spelt[last])
        if merge and chains and goes_on:
            chains[-1].append(number)
        else:
            chains.append([number])
    return chains


def _cut(
    chains: Sequence[Sequence[int]],
    spelt: Sequence[bytes],
    temperatures: Sequence[float],
    keys: Sequence[Key],
    *,
    firsts: Sequence[int],
    counts: Sequence[int],
    logprobs: Floats,
    advantages: Sequence[float],
    weights: Sequence[float],
    units: Sequence[int],
) -> list[Row]:
    """A row of each chain, whose last sequence holds the others.

    What has a name is in the order of the chains: of each sequence the parent of its first entry, and how
    many follow, one token after the other; `logprobs` has one for each entry.
    """
    ends = np.cumsum(np.array(counts, dtype=np.int64))
    starts = ends - counts
    parents = np.arange(len(logprobs)) + np.repeat(np.array(firsts, dtype=np.int64) - starts, counts)
    advantage, weight = (np.repeat(np.array(x, dtype=np.float32), counts) for x in (advantages, weights))
    numbers = list(chain.from_iterable(chains))
    sequence, unit = (np.repeat(np.array(x, dtype=np.int64), counts) for x in (numbers, units))
    edges = [0, *ends[np.cumsum([len(each) for each in chains]) - 1].tolist()] if chains else []
    return [
        Row(
            np.frombuffer(spelt[each[-1]], ">u4").astype(np.int64),
            parents[start:end],
            logprobs[start:end],
            advantage[start:end],
            weight[start:end],
            sequence[start:end],
            unit[start:end],
            temperatures[each[-1]],
            tuple(keys[number] for number in each),
        )
        for each, (start, end) in zip(chains, pairwise(edges), strict=True)
    ]
