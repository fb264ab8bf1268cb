"""The spread of returns between replies and within them: a one-way analysis of variance that adds up.

    B = between / kinds        W = within / repeats        relevance = max(0, 1 - W / B)

With random effects E[B] is E[W] and what the replies themselves make for, so 1 - W / B estimates their share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from lightning_core.credit.finals import EPSILON

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Spread:
    """Sums of squares of returns, and their degrees of freedom."""

    between: float = 0.0
    """Of the replies' means from the mean of all, for each return."""
    kinds: int = 0
    """Replies, less one for each state."""
    within: float = 0.0
    """Of returns from the mean of their reply."""
    repeats: int = 0
    """Returns, less one for each reply."""

    def __add__(self, other: Spread) -> Spread:
        return Spread(
            self.between + other.between,
            self.kinds + other.kinds,
            self.within + other.within,
            self.repeats + other.repeats,
        )

    def __sub__(self, other: Spread) -> Spread:
        return self + Spread(-other.between, -other.kinds, -other.within, -other.repeats)

    @property
    def relevance(self) -> float | None:
        """max(0, 1 - W / B): the share of B that is no chance. None if nothing tells."""
        if not self.kinds or not self.repeats:
            return None
        between, within = self.between / self.kinds, self.within / self.repeats
        return max(0.0, 1 - within / between) if between > EPSILON**2 else 0.0


def spread_of(returns: Sequence[Sequence[float]]) -> Spread:
    """Of the returns of each reply; nothing if there is one reply only, if none was given twice, or if all
    returns are equal."""
    everything = [value for values in returns for value in values]
    if len(returns) in (1, len(everything)) or max(everything) - min(everything) <= EPSILON:
        return Spread()
    mean = fmean(everything)
    means = [fmean(values) for values in returns]
    return Spread(
        between=sum(len(values) * (own - mean) ** 2 for values, own in zip(returns, means, strict=True)),
        kinds=len(returns) - 1,
        within=sum(
            (value - own) ** 2 for values, own in zip(returns, means, strict=True) for value in values
        ),
        repeats=len(everything) - len(returns),
    )


def sort_out(entries: Iterable[tuple[Hashable, Entry]]) -> list[list[Entry]]:
    """Entries of the same kind together."""
    kinds: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for kind, entry in entries:
        kinds[kind].append(entry)
    return list(kinds.values())
