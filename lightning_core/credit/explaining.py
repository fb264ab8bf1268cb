"""Why an advantage is what it is: the terms that `assign` adds up, kept apart for people who ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from lightning_core.credit.base import (
    Baseline,
    Comparison,
    Credit,
    CreditReport,
    Finals,
    Part,
    Peer,
    Scale,
    credit_groups,
    measure,
)
from lightning_core.records.types import Key, Trajectory


@dataclass(frozen=True, slots=True)
class Term:
    """The share of one comparison in an advantage: weight * (value - baseline) / unit."""

    value: float
    """The return."""
    baseline: float
    unit: float
    weight: float
    parts: tuple[Part, ...]
    """Parts of the return; () if its method has none."""
    peers: tuple[Peer, ...]
    """The returns that were compared."""
    own: int
    """Which peer the transition is in."""
    compared: bool
    """False: the values are advantages already, such as those of a critic or of a table."""

    @property
    def amount(self) -> float:
        return self.weight * (self.value - self.baseline) / self.unit

    @property
    def means(self) -> list[float]:
        """The return of each peer, as it counts in a baseline."""
        return [fmean(peer.values()) for peer in self.peers]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a transition has its advantage: (sum of the terms - mean) / unit."""

    terms: tuple[Term, ...]
    mean: float
    """Mean of the whole batch; 0 unless the scale is "batch"."""
    unit: float
    """The deviation over the batch; 1 unless the scale is "batch", inf if nothing differed in it."""
    advantage: float
    """As `assign` gives it."""

    @property
    def total(self) -> float:
        return (sum(term.amount for term in self.terms) - self.mean) / self.unit


def explain(
    trajectories: Iterable[Trajectory], credit: Credit, baseline: Baseline = "mean", scale: Scale = "std"
) -> tuple[list[Trajectory], CreditReport, dict[Key, Explanation]]:
    """Returns the credited trajectories and the report, with an explanation for each transition with an
    advantage."""
    credited, report, compared, (mean, unit) = credit_groups(trajectories, credit, baseline, scale)
    terms: defaultdict[Key, list[Term]] = defaultdict(list)
    for group, comparisons in compared.values():
        finals = Finals(group)
        for comparison in comparisons:
            for key, term in _terms(comparison, baseline, scale, finals):
                terms[key].append(term)
    found = {
        t.key: Explanation(tuple(terms[t.key]), mean, unit, t.advantage)
        for each in credited
        for t in each.transitions
        if t.advantage is not None
    }
    return credited, report, found


def _terms(
    comparison: Comparison, baseline: Baseline, scale: Scale, finals: Finals
) -> Iterator[tuple[Key, Term]]:
    measured = measure(comparison, baseline, scale, finals)
    if measured is None:
        return
    peers, credited = tuple(measured.peers), comparison.credited
    for own, (peer, off) in enumerate(zip(peers, measured.baselines, strict=True)):
        for key, value in peer.items():
            if credited is None or key in credited:
                parts = tuple(comparison.parts(key))
                yield (
                    key,
                    Term(
                        value, off, measured.unit, comparison.weight, parts, peers, own, comparison.baseline
                    ),
                )
