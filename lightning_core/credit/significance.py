"""Significance: whether what an agent replies at a turn makes a difference, and how sure that is.

    pairs     sum over pairs of calls of  k(i, j) x(i) y(j),   k = 1 if the replies are equal, less its mean
    z         pairs / their deviation if replies made no difference

If replies matter, equal replies earn alike and the sum is positive: with x = y = A it estimates the square of
the gradient of that turn, without the noise of a call with itself. Calls are paired within a state of a group
(`pairs_within`), and by their groups (`between_groups`), where a reply may be right for several tasks.

`matters` turns the z of all turns into the probability that each of them matters:

    z ~ (1 - q) N(0, 1) + q N(d, 1 + (d / 2)^2)

q, the share of turns that matter, and d, how plainly it shows, are not known: the answer is the mean over a
grid of both, by how well they explain all turns together. Most of what is believed beforehand is q = 1, so
turns count alike until a difference between them is hard to explain otherwise. A mixture of two normal
distributions with unknown shares is the two-groups model of Efron (2008, arXiv 0808.0572).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
SHARES = np.array([0.1, 0.25, 0.5, 0.75, 1.0])
"""Values of q."""
BELIEVED = np.array([1.0, 1.0, 1.0, 1.0, 30.0]) / 34
"""How likely each is beforehand."""
PLAINNESS = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
"""Values of d, all equally likely beforehand."""
TINY = 1e-9
LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class PairSums:
    """Sums over pairs, one for each turn, and their variance where replies make no difference."""

    total: Floats
    variance: Floats

    def __add__(self, other: PairSums) -> PairSums:
        return PairSums(self.total + other.total, self.variance + other.variance)

    def __sub__(self, other: PairSums) -> PairSums:
        return PairSums(self.total - other.total, self.variance - other.variance)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Where there was anything to compare."""
        return self.variance > TINY

    @property
    def z(self) -> Floats:
        """The totals in standard deviations; 0 where nothing is known."""
        return np.where(self.known, self.total / np.sqrt(np.maximum(self.variance, TINY)), 0.0)


def pairs_within(x: Floats, y: Floats, turn: Whole, state: Whole, reply: Whole, turns: int) -> PairSums:
    """Pairs of calls in the same state, each of another rollout. Arrays are (E,), of one group's calls."""
    states, kinds = int(state.max(initial=-1)) + 1, _number(state, reply)
    members = np.bincount(state, minlength=states)
    x = x - (np.bincount(state, x, states) / np.maximum(members, 1))[state]
    y = y - (np.bincount(state, y, states) / np.maximum(members, 1))[state]
    of_kind, both = np.zeros(int(kinds.max(initial=-1)) + 1, np.int64), x * y
    of_kind[kinds] = state
    alike = np.bincount(kinds) * (np.bincount(kinds) - 1)
    share = np.bincount(of_kind, alike, states) / np.maximum(members * (members - 1), 1)
    equal = np.bincount(kinds, x) * np.bincount(kinds, y) - np.bincount(kinds, both)
    total = np.bincount(of_kind, equal, states) + share * np.bincount(state, both, states)
    equal_squares = np.bincount(kinds, both) ** 2 - np.bincount(kinds, both**2)
    squares = np.bincount(state, both, states) ** 2 - np.bincount(state, both**2, states)
    same = np.bincount(of_kind, equal_squares, states)
    variance = 2 * np.abs(same * (1 - share) ** 2 + (squares - same) * share**2)
    turn_of = np.zeros(states, np.int64)
    turn_of[state] = turn
    variance = np.where(members > 1, variance, 0.0)
    sums = np.bincount(turn_of, total, turns).astype(float)
    return PairSums(sums, np.bincount(turn_of, variance, turns).astype(float))


def between_groups(sums: Floats) -> list[PairSums]:
    """For each group of one turn: pairs among all other groups. `sums` (groups, replies) holds what the calls
    with each reply were worth, less the mean of the group."""
    products = sums @ sums.T
    np.fill_diagonal(products, 0.0)
    rows, squares = products.sum(1), (products**2).sum(1)
    return [
        PairSums(np.array(products.sum() - 2 * row), np.array(2 * ((products**2).sum() - 2 * square)))
        for row, square in zip(rows, squares, strict=True)
    ]


def matters(z: Floats, known: NDArray[np.bool_]) -> Floats:
    """(T,) the probability that each turn matters, as a share of the largest: all 1 where nothing tells."""
    spread = np.sqrt(1 + (PLAINNESS / 2) ** 2)
    never = np.exp(-0.5 * z**2)[:, None] + LEAST  # (T, 1)
    always = np.exp(-0.5 * ((z[:, None] - PLAINNESS) / spread) ** 2) / spread + LEAST  # (T, d)
    mixed = (1 - SHARES) * never[..., None] + SHARES * always[..., None]  # (T, d, q)
    explained = np.where(known[:, None, None], np.log(mixed), 0.0).sum(0) + np.log(BELIEVED)
    likely = np.exp(explained - explained.max())
    each = np.where(known[:, None, None], SHARES * always[..., None] / mixed, 1.0)
    found = (each * likely).sum((1, 2)) / likely.sum()
    return np.asarray(found / found.max(initial=LEAST))


def _number(state: Whole, reply: Whole) -> Whole:
    """The place of each pair of state and reply among the different ones."""
    pairs = state * (int(reply.max(initial=0)) + 1) + reply
    return np.asarray(np.unique(pairs, return_inverse=True)[1])
