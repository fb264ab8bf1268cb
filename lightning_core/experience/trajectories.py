"""Trajectories as a tree of shared token prefixes, cut into packs that are trained in one forward pass each.

The tree is never built of nodes. The token sequences of a batch, sorted, stand in the order in which a
depth-first walk of their prefix tree would meet them, and what a sequence adds is what lies beyond the prefix
it shares with the one before. So a pack is a walk written down: each tree token once, with its depth as
position, and with the end of its subtree. Token j is an ancestor of token i (or i itself) exactly if j <= i <
ends[j], which is all that tree attention needs. Sequences of different rollouts share prefixes like those of
one; loss entries are never shared.

Only numbers here, no tensors: numpy in, numpy out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from lightning_core.errors import TrainingError
from lightning_core.records.sequences import Spelt, common, join, prefixes, spell, spell_each
from lightning_core.records.types import Key, Trajectory, Transition

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

ABSENT = "reply absent"
CHANGED = "reply changed"
STOP_CHANGED = "stop token changed"


@dataclass(frozen=True, slots=True)
class Pack:
    """A forest of token prefixes, T tokens in depth-first order, and the E loss entries that hang on it."""

    tokens: Ints
    """(T,) token ids."""
    positions: Ints
    """(T,) depth of each token in its tree: its position in the sequence it belongs to."""
    ends: Ints
    """(T,) index one beyond the last token of each token's subtree."""
    parents: Ints
    """(E,) index of the token after which the entry's token was sampled."""
    targets: Ints
    """(E,) the sampled token."""
    logprobs: Floats
    """(E,) as recorded when it was sampled."""
    advantages: Floats
    """(E,)"""
    weights: Floats
    """(E,) share of the batch's loss."""
    temperatures: Floats
    """(E,) sampled with; 1 where it was greedy."""
    sequences: Ints
    """(E,) index into `keys`."""
    units: Ints
    """(E,) the unit of each entry's transition; -1 where it has none."""
    teacher_logprobs: Floats
    """(E,) under the teacher; NaN where the transition has none."""
    keys: tuple[Key, ...]
    """The transitions in this pack."""
    grammars: tuple[str | None, ...]
    """The grammar of each reply's tokens."""
    passed: int
    """Tokens that go through the network: T, and what branches share once more for each, where it must."""


@dataclass(frozen=True, slots=True)
class Unmerged:
    """A call that went on from an earlier one's prompt, but not with the tokens the earlier one sampled."""

    rollout_id: str
    call_id: str
    after: str
    """The earlier call."""
    reason: str
    """One of ABSENT, CHANGED, STOP_CHANGED."""
    index: int
    """The first differing token, counted in the prompt of `call_id`."""
    sampled: int
    """The token that the earlier call sampled there."""
    found: int
    """The token that the prompt holds there."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The tokens that merging saved in a batch, and the places where it could not."""

    tokens_before: int
    """Tokens through the model if each transition stood alone."""
    tokens_after: int
    """Tokens through the model as packed."""
    unmerged: tuple[Unmerged, ...]

    @property
    def ratio(self) -> float:
        """How many times fewer tokens; 1.0 for an empty batch."""
        return self.tokens_before / self.tokens_after if self.tokens_after else 1.0

    @property
    def reasons(self) -> dict[str, int]:
        return dict(Counter(u.reason for u in self.unmerged))

    def metrics(self) -> dict[str, float]:
        """As metrics of an update."""
        return {
            "forward_tokens": float(self.tokens_after),
            "unmerged_tokens": float(self.tokens_before),
            "merge_ratio": self.ratio,
            "unmerged_calls": float(len(self.unmerged)),
        }


def trained_transitions(trajectories: Iterable[Trajectory]) -> list[Transition]:
    """Returns the transitions that carry loss: of a trained agent, with an advantage, with at least one
    sampled token."""
    return [
        t
        for trajectory in trajectories
        for t in trajectory.transitions
        if t.trained and t.advantage is not None and len(t.completion_ids)
    ]


def make_packs(
    trajectories: Sequence[Trajectory],
    weights: Mapping[Key, float],
    *,
    pack_tokens: int,
    units: Mapping[Key, int] | None = None,
    merge: bool = True,
    branches: bool = True,
) -> list[Pack]:
    """Cut a batch into packs of at most `pack_tokens` tokens.

    A branch that does not fit starts the next pack and repeats its prefix there; a sequence that is longer
    than a pack has one to itself. Transitions of one unit are in one pack, however long that makes it.
    `weights` gives the loss weight of one token of each transition; a transition without one carries no loss.
    `merge=False` shares nothing, for comparison. Without `branches` the network runs each branch as a whole
    sequence, so what it shares counts again; only a sequence that goes on from another saves. Raises
    TrainingError for a transition without a prompt, or whose logprobs do not match its tokens.
    """
    units = units or {}
    spelt, rows = _rows([t for t in trained_transitions(trajectories) if t.key in weights])
    packs: list[Pack] = []
    walk = _Walk(spelt, merge, branches)
    for block in _blocks(rows, units):
        if walk.size and walk.passed + walk.cost(block) > pack_tokens:
            packs.append(walk.pack(weights, units))
            walk = _Walk(spelt, merge, branches)
        for row in block:
            walk.add(row)
    if walk.size:
        packs.append(walk.pack(weights, units))
    return packs


def report_merge(trajectories: Sequence[Trajectory], packs: Sequence[Pack]) -> MergeReport:
    """Compare packs with the transitions they were made from."""
    kept = {key for pack in packs for key in pack.keys}
    before = sum(
        len(t.prompt_ids) + len(t.completion_ids) - 1
        for t in trained_transitions(trajectories)
        if t.key in kept
    )
    after = sum(pack.passed for pack in packs)
    return MergeReport(before, after, tuple(u for t in trajectories for u in find_unmerged(t)))


def find_unmerged(trajectory: Trajectory) -> list[Unmerged]:
    """For each trained call that continues an earlier call's prompt: where it leaves the tokens sampled then.

    The earlier call is the one with the longest such prompt. A call with the very same prompt is a retry or
    another choice, not a continuation. `index` counts in tokens of the later call's prompt.
    """
    calls = trained_transitions([trajectory])
    prompts = spell_each([t.prompt_ids for t in calls], [()] * len(calls))
    found: dict[int, Unmerged] = {}
    for place, stack in prefixes(prompts):
        for places in islice(reversed(stack), 1, None):
            if places[0] < place:
                earlier = [calls[other] for other in places if other < place]
                unmerged = _leave(calls[place], prompts.part(place, prompts.sizes[places[0]]), earlier)
                if unmerged is not None:
                    found[place] = unmerged
                break
    return [found[place] for place in sorted(found)]


def _leave(call: Transition, rest: bytes, earlier: Sequence[Transition]) -> Unmerged | None:
    """Where a call leaves what earlier calls with one prompt sampled; None if it goes on with one's reply.
    `rest` is what its own prompt adds to theirs."""
    leaves = []
    for each in earlier:
        reply = spell(each.completion_ids)
        at = common(reply, rest)
        if 4 * at == min(len(reply), len(rest)):
            return None
        leaves.append((at, each))
    at, last = max(leaves, key=lambda leaf: leaf[0])
    reason = ABSENT if at == 0 else STOP_CHANGED if at == len(last.completion_ids) - 1 else CHANGED
    index = len(call.prompt_ids) - len(rest) // 4 + at
    sampled, found = last.completion_ids[at], call.prompt_ids[index]
    return Unmerged(call.rollout_id, call.call_id, last.call_id, reason, index, sampled, found)


@dataclass(frozen=True, slots=True)
class _Row:
    """One transition as a sequence; its last token is a target only and needs no forward pass."""

    transition: Transition
    place: int
    """Its place among what was spelt."""
    length: int


def check_tokens(t: Transition) -> None:
    """Raises TrainingError for a transition without a prompt, or whose logprobs do not match its tokens."""
    if not len(t.prompt_ids):
        raise TrainingError(
            f"call {t.call_id!r} of rollout {t.rollout_id!r} has no prompt ids, so it can't be trained on"
        )
    if len(t.logprobs) != len(t.completion_ids):
        raise TrainingError(
            f"call {t.call_id!r} of rollout {t.rollout_id!r} has {len(t.completion_ids)} completion ids but "
            f"{len(t.logprobs)} logprobs; both must come from the engine that sampled them"
        )


def _rows(transitions: Sequence[Transition]) -> tuple[Spelt, list[_Row]]:
    """The transitions as they are spelt, and their rows, sorted."""
    for t in transitions:
        check_tokens(t)
    spelt = spell_each([t.prompt_ids for t in transitions], [t.completion_ids[:-1] for t in transitions])
    order = spelt.in_order(range(len(transitions)))
    return spelt, [_Row(transitions[place], place, spelt.sizes[place] // 4) for place in order]


def _blocks(rows: Sequence[_Row], units: Mapping[Key, int]) -> list[list[_Row]]:
    """Rows that must stay together, each block where its first row stands."""
    blocks: dict[Key | int, list[_Row]] = {}
    for row in rows:
        key = row.transition.key
        blocks.setdefault(units.get(key, key), []).append(row)
    return list(blocks.values())


class _Walk:
    """A pack being written: the tokens so far, and the path to the last one."""

    def __init__(self, spelt: Spelt, merge: bool, branches: bool) -> None:
        self.size = self.passed = 0
        self._spelt = spelt
        self._merge, self._branches = merge, branches
        self._runs: list[Ints] = []
        self._positions: list[Ints] = []
        self._last: _Row | None = None
        self._path: Ints = np.empty(max(spelt.sizes, default=0) // 4, dtype=np.int64)
        """Index in the pack of each token of the last sequence; what lies beyond it means nothing."""
        self._ended: list[tuple[Ints, int]] = []
        self._rows: list[tuple[Transition, Ints]] = []

    def cost(self, block: Sequence[_Row]) -> int:
        """Tokens that adding these rows would send through the network."""
        before = [self._last, *block]
        return sum(self._passes(last, row) for last, row in zip(before, block, strict=False))

    def _passes(self, last: _Row | None, row: _Row) -> int:
        shared = self._shared(last, row)
        return row.length - shared if self._branches or last is None or shared == last.length else row.length

    def add(self, row: _Row) -> None:
        shared, last = self._shared(self._last, row), 0 if self._last is None else self._last.length
        self.passed += self._passes(self._last, row)
        text = self._spelt.texts[row.place]
        new = np.frombuffer(text, ">u4", row.length - shared, 4 * shared).astype(np.int64)
        self._ended.append((self._path[shared:last].copy(), self.size))
        self._path[shared : row.length] = np.arange(self.size, self.size + len(new))
        self._runs.append(new)
        self._positions.append(np.arange(shared, row.length))
        self._last = row
        self.size += len(new)
        start = len(row.transition.prompt_ids) - 1
        self._rows.append((row.transition, self._path[start : row.length].copy()))

    def _shared(self, last: _Row | None, row: _Row) -> int:
        """Tokens shared with the last sequence; among sorted rows, no other shares more."""
        return self._spelt.common(last.place, row.place) if self._merge and last is not None else 0

    def pack(self, weights: Mapping[Key, float], units: Mapping[Key, int]) -> Pack:
        ends = np.full(self.size, self.size, dtype=np.int64)
        for indices, end in self._ended:
            ends[indices] = end
        transitions = [t for t, _ in self._rows]
        lengths = [len(t.completion_ids) for t in transitions]

        def spread(values: list[float]) -> Floats:
            return np.repeat(np.array(values, dtype=np.float32), lengths)

        return Pack(
            tokens=np.concatenate(self._runs),
            positions=np.concatenate(self._positions),
            ends=ends,
            parents=np.concatenate([parents for _, parents in self._rows]),
            targets=np.frombuffer(spell(*(t.completion_ids for t in transitions)), ">u4").astype(np.int64),
            logprobs=join(*(t.logprobs for t in transitions)),
            advantages=spread([t.advantage or 0.0 for t in transitions]),
            weights=spread([weights[t.key] for t in transitions]),
            temperatures=spread([t.temperature or 1.0 for t in transitions]),
            sequences=np.repeat(np.arange(len(lengths)), lengths),
            units=np.repeat(np.array([units.get(t.key, -1) for t in transitions], dtype=np.int64), lengths),
            teacher_logprobs=join(
                *(
                    [math.nan] * len(t.completion_ids) if t.teacher_logprobs is None else t.teacher_logprobs
                    for t in transitions
                )
            ),
            keys=tuple(t.key for t in transitions),
            grammars=tuple(t.grammar for t in transitions),
            passed=self.passed,
        )
