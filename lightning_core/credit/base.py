"""Credit: how the rewards of a group of rollouts become an advantage for each transition.

It takes two steps, so that any credit method goes with any algorithm. A credit method says who is compared
with whom, and over which return: a pure function from the trajectories of a group to `Comparison`s. The
algorithm says how they are compared: the baseline that is taken off and the scale. To write a method, copy
`credit/anchor.py`, and register it in `builtins.py`.

    A(k) = weight * (G(k) - baseline) / scale          summed over the comparisons that credit transition k

What holds for every method:

- a rollout counts once in every baseline, whatever its number of calls;
- an agent that is not trained is in no baseline;
- of several choices of a call only what the app went on with counts (`without_dropped`);
- a comparison in which all returns are equal says nothing and is left out; a transition that is in none
  carries no loss, or with `everyone` an advantage of 0;
- a group with a number beyond `REACH`, or that is none, is left out whole and changes no other;
- what is small stays small: where all final rewards are equal, the scale is no less than what a difference of
  final rewards would make it.

For the last: where final rewards are equal, only intermediate rewards tell rollouts apart, and those are
small on purpose. Divided by their own deviation they would become as large as the difference
between success and failure, so a deviation is then no less than that of one success among n failures, with
rewards of 1 and 0:

    least unit = sqrt(n - 1) / n
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from lightning_core.credit.branches import reward_without_call, rewards_ahead, without_dropped
from lightning_core.experience.returns import total_return
from lightning_core.records.types import Key, Trajectory, Transition

EPSILON = 1e-6
"""Spread below which rewards count as equal; they are of the order of 1."""
Peer = Mapping[Key, float]
"""One side of a comparison, as a rule a rollout: the return of each of its transitions. In a baseline it
counts once, as their mean."""


class Part(NamedTuple):
    """A summand of a return: `factor` times `value`."""

    name: str
    value: float
    factor: float = 1.0


FROM_HERE: Final = "rewards from here on"
WHOLE: Final = "rewards of the whole rollout"
UNTIL: Final = "reward until the next state"
AFTER: Final = "mean of others from the next state"
EXPECTED: Final = "mean of others from this state"
CRITIC: Final = "critic's value of this turn"
"""Names of parts: what the rollout earned, and what it is measured by."""


def add_parts(parts: Iterable[Part]) -> float:
    """The return that the parts make."""
    return sum(part.factor * part.value for part in parts)


def _no_parts(key: Key) -> tuple[Part, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Peers whose returns can be compared with one another."""

    peers: tuple[Peer, ...]
    weight: float = 1.0
    """Where several comparisons credit the same transition, their advantages add up with these weights."""
    credited: frozenset[Key] | None = None
    """The transitions that get an advantage; the others are in the baseline only. None: all."""
    baseline: bool = True
    """False: the returns are advantages already, such as those of a critic; nothing is taken off, and their
    deviation is that from 0."""
    targets: Mapping[Key, float] = field(default_factory=dict)
    """The critic's targets for these transitions."""
    measured: tuple[Peer, ...] | None = None
    """The peers whose deviation is the unit; None: its own."""
    parts: Callable[[Key], Sequence[Part]] = _no_parts
    """Returns the parts of a transition's return, for people who ask why; () where a method has none."""


Credit = Callable[[Sequence[Trajectory]], Iterable[Comparison]]
"""A credit method: from the rollouts of one group to what is to be compared."""


@runtime_checkable
class BatchCredit(Protocol):
    """A credit method that also learns from the other groups of a batch."""

    def of_batch(self, groups: Sequence[Sequence[Trajectory]]) -> Credit:
        """The method for the groups of this batch; none may have a part in its own."""

    def __call__(self, group: Sequence[Trajectory]) -> Iterable[Comparison]:
        """For a group without a batch."""


Baseline = Literal["mean", "leave_one_out", "none"]
"""The number subtracted from a return: the mean over all peers; the mean over the others, which is unbiased
as the return itself is no part of it; nothing."""
Scale = Literal["std", "mean", "batch", "none"]
"""The number a comparison is divided by: its own standard deviation; its mean return; nothing. "batch": the
advantages of the whole batch are shifted to mean 0 and divided to deviation 1. See `least_unit` for where a
deviation is small.

"mean" is for rewards from 0 to 1. It makes the gradient that of the logarithm of the success rate, so a rare
success weighs more than with "std": Tajwar et al., MaxRL, arXiv 2602.02710. The mean counts as no less than
that of one success among the compared, 1 / n: returns may be below 0. Returns that are advantages already
are divided by nothing."""


REACH: Final = 1e15
"""How large a return, a target or an advantage may be, either way: a million of the largest rewards. Its
square is far from overflow, in 32 bits too."""


@dataclass(frozen=True, slots=True)
class CreditReport:
    """The counts of a batch's credit."""

    groups: int
    zero_variance_groups: int
    """Groups in which no transition got an advantage: their rollouts were all equally good."""
    transitions: Counter[str] = field(default_factory=Counter)
    """Transitions that carry loss, per agent."""
    unusable: tuple[str, ...] = ()
    """Ids of the groups with rewards, returns, targets or advantages beyond `REACH`: they are left out."""


def total_parts(trajectory: Trajectory, agent: str) -> tuple[Part, ...]:
    """Returns the parts of `total_return`."""
    return (
        Part("final reward", trajectory.final(agent)),
        Part("intermediate rewards of the rollout", trajectory.intermediate),
    )


def parts_to_go(trajectory: Trajectory, transition: Transition, discount: float) -> tuple[Part, ...]:
    """Returns the parts of `returns_to_go`."""
    place = [t.key for t in trajectory.transitions].index(transition.key)
    left, later = rewards_ahead(trajectory, discount)[place]
    return (
        Part("final reward", trajectory.final(transition.agent), discount**left),
        Part("intermediate rewards about no call", reward_without_call(trajectory), discount**left),
        Part("reward of this call", transition.reward),
        Part("rewards of later calls of the branch", later),
    )


def parts_of(
    group: Sequence[Trajectory], parts: Callable[[Trajectory, Transition], Sequence[Part]]
) -> Callable[[Key], Sequence[Part]]:
    """The parts of a comparison, from those of a transition."""

    def find(key: Key) -> Sequence[Part]:
        found = ((each, t) for each in group if each.rollout_id == key[0] for t in each.transitions)
        return next((parts(each, t) for each, t in found if t.key == key), ())

    return find


def group_by_id(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories under their `group_id`, in the order given."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


@dataclass(frozen=True, slots=True)
class Measure:
    """The baselines and the unit of a comparison."""

    peers: Sequence[Peer]
    """Peers with a return."""
    baselines: Sequence[float]
    """The baseline of each peer's returns."""
    unit: float
    """The divisor of return less baseline."""


def measure(
    comparison: Comparison, baseline: Baseline = "mean", scale: Scale = "std", finals: Finals | None = None
) -> Measure | None:
    """Baselines and scale of a comparison; None if all returns are equal.

    The deviation is the population's, over the peers, each with equal weight, and where `finals` says that
    the peers ended alike no less than `least_unit`. A peer alone has nothing to be compared with, unless the
    comparison asks for no baseline.
    """
    peers = [peer for peer in comparison.peers if peer]
    means = [fmean(peer.values()) for peer in peers]
    taken: list[float]
    if not comparison.baseline or baseline == "none":
        taken = [0.0] * len(peers)
        # over a whole batch a return of 0 tells too
        flat = scale != "batch" and all(abs(g) <= EPSILON for peer in peers for g in peer.values())
    else:
        taken = [fmean(means)] * len(peers) if means else []
        flat = _spread(peers, taken) <= EPSILON or len(peers) < 2
        if baseline == "leave_one_out" and not flat:
            taken = [(sum(means) - own) / (len(means) - 1) for own in means]
    if flat:
        return None
    unit = 1.0
    if scale == "mean" and comparison.baseline:
        unit = max(fmean(means), 1 / len(means))
    if scale == "std":
        unit = _deviation(comparison)
        if unit <= EPSILON:
            return None
        if finals is not None and finals.equal(key for peer in peers for key in peer):
            unit = max(unit, least_unit(len(peers)))
    return Measure(peers, taken, unit)


def _deviation(comparison: Comparison) -> float:
    """The unit of scale "std"."""
    peers = [peer for peer in comparison.measured or comparison.peers if peer]
    about_mean = comparison.baseline or comparison.measured is not None
    centre = fmean(fmean(peer.values()) for peer in peers) if about_mean else 0.0
    return _spread(peers, [centre] * len(peers))


def compare(
    comparison: Comparison, baseline: Baseline = "mean", scale: Scale = "std", finals: Finals | None = None
) -> dict[Key, float]:
    """The advantage of each credited transition, without the comparison's weight; empty if all are equal."""
    measured = measure(comparison, baseline, scale, finals)
    if measured is None:
        return {}
    credited = comparison.credited
    return {
        key: (value - off) / measured.unit
        for peer, off in zip(measured.peers, measured.baselines, strict=True)
        for key, value in peer.items()
        if credited is None or key in credited
    }


def add_up(
    group: Iterable[Trajectory],
    comparisons: Iterable[Comparison],
    baseline: Baseline = "mean",
    scale: Scale = "std",
) -> dict[Key, float]:
    """The advantages of a group's transitions; those that no comparison credits are left out."""
    advantages: defaultdict[Key, float] = defaultdict(float)
    finals = Finals(group)
    for comparison in comparisons:
        for key, advantage in compare(comparison, baseline, scale, finals).items():
            advantages[key] += comparison.weight * advantage
    return dict(advantages)


def assign(
    trajectories: Iterable[Trajectory],
    credit: Credit,
    baseline: Baseline = "mean",
    scale: Scale = "std",
    *,
    everyone: bool = False,
) -> tuple[list[Trajectory], CreditReport]:
    """The trajectories with their advantages and targets; groups without any are dropped and counted, and so
    are groups with numbers beyond `REACH`.

    With `everyone` a trained transition that was in no comparison has advantage 0 in place of none, and its
    group is kept: for a loss with terms that need no advantage, such as a bonus on entropy.
    """
    return credit_groups(trajectories, credit, baseline, scale, everyone=everyone)[:2]


Compared = tuple[Sequence[Trajectory], Sequence[Comparison]]
"""A group, and what was compared in it."""
Whitening = tuple[float, float]
"""Mean and unit of a batch."""


def credit_groups(
    trajectories: Iterable[Trajectory],
    credit: Credit,
    baseline: Baseline,
    scale: Scale,
    *,
    everyone: bool = False,
) -> tuple[list[Trajectory], CreditReport, dict[str, Compared], Whitening]:
    """Returns the credited trajectories, the report, the comparison in each group of use, and the batch's
    measure."""
    groups = group_by_id(trajectories)
    heard = {
        name: [without_dropped(each) for each in group]
        for name, group in groups.items()
        if not any(abs(reward) > REACH for each in group for reward in _rewards(each))
    }
    if isinstance(credit, BatchCredit):
        credit = credit.of_batch(list(heard.values()))
    advantages: dict[Key, float] = {}
    targets: dict[Key, float] = {}
    compared: dict[str, Compared] = {}
    told: set[str] = set()  # groups with an advantage
    for name, group in list(heard.items()):
        comparisons = list(credit(group))
        compared[name] = group, comparisons
        found = add_up(group, comparisons, baseline, scale) if all(map(_in_reach, comparisons)) else None
        if found is None or not all(abs(advantage) <= REACH for advantage in found.values()):
            del heard[name]
        elif found:
            told.add(name)
            advantages.update(found)
            for comparison in comparisons:
                targets.update(comparison.targets)
    whitening: Whitening = (0.0, 1.0)
    if scale == "batch":
        batch = [each for group in heard.values() for each in group]
        whitening = _whiten(advantages, [batch] if baseline == "none" else list(heard.values()))
        advantages = {key: (value - whitening[0]) / whitening[1] for key, value in advantages.items()}
        if not targets and not any(advantages.values()):
            told, advantages = set(), {}
    silent = len(heard) - len(told)
    if everyone:
        for name, group in heard.items():
            for t in (t for each in group for t in each.transitions if t.trained):
                told.add(name)
                advantages.setdefault(t.key, 0.0)
    kept = [group for name, group in groups.items() if name in told]
    credited = [_credited(each, advantages, targets) for group in kept for each in group]
    agents = Counter(t.agent for each in credited for t in each.transitions if t.advantage is not None)
    unusable = tuple(name for name in groups if name not in heard)
    report = CreditReport(len(groups), silent, agents, unusable)
    return credited, report, {name: compared[name] for name in heard}, whitening


def _rewards(trajectory: Trajectory) -> Iterator[float]:
    """All of a rollout; that of a demonstration is NaN."""
    yield from (trajectory.reward, trajectory.intermediate, *trajectory.agent_rewards.values())
    yield from (t.reward for t in trajectory.transitions)


def _in_reach(comparison: Comparison) -> bool:
    returns = (value for peer in comparison.peers for value in peer.values())
    return all(abs(number) <= REACH for number in (comparison.weight, *comparison.targets.values(), *returns))


def _spread(peers: Sequence[Peer], taken: Sequence[float]) -> float:
    """Root of the mean square distance, each peer with equal weight."""
    squares = [
        fmean((value - off) ** 2 for value in peer.values()) for peer, off in zip(peers, taken, strict=True)
    ]
    return math.sqrt(fmean(squares)) if squares else 0.0


def _whiten(advantages: Mapping[Key, float], compared: Sequence[Sequence[Trajectory]]) -> Whitening:
    """(mean, unit) that give the advantages mean 0 and deviation 1 over the batch, each rollout with equal
    weight; the unit is inf if all are equal. Less than deviation 1 if rollouts that were `compared` with one
    another all ended alike.

    What says nothing has advantage 0 in mean and deviation, as in REINFORCE++'s batch; it is not shifted.
    """
    rollouts = [
        {t.key: advantages.get(t.key, 0.0) for t in each.transitions if t.trained}
        for part in compared
        for each in part
    ]
    peers = [rollout for rollout in rollouts if rollout]
    if not peers:
        return 0.0, 1.0
    mean = fmean(fmean(peer.values()) for peer in peers)
    unit = _spread(peers, [mean] * len(peers))
    if unit <= EPSILON:
        return mean, math.inf
    if all(_end_alike(part, advantages) for part in compared):
        unit = max(unit, least_unit(len(peers)))
    return mean, unit


def _end_alike(compared: Sequence[Trajectory], advantages: Mapping[Key, float]) -> bool:
    keys = (t.key for each in compared for t in each.transitions)
    return Finals(compared).equal(key for key in keys if key in advantages)


def _credited(
    trajectory: Trajectory, advantages: Mapping[Key, float], targets: Mapping[Key, float]
) -> Trajectory:
    return replace(
        trajectory,
        transitions=tuple(
            replace(t, advantage=advantages.get(t.key), target=targets.get(t.key))
            for t in trajectory.transitions
        ),
    )


# where final rewards are equal ----------------------------------------------------------------------
class Finals:
    """The final rewards of some rollouts, by the agents of their transitions."""

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self._rollouts = {each.rollout_id: each for each in trajectories}
        self._agents = {t.key: t.agent for each in self._rollouts.values() for t in each.transitions}

    def equal(self, keys: Iterable[Key]) -> bool:
        """Whether the rollouts of these transitions end alike, for each of the agents that made them.

        Keys that are no transition's are known by their rollout alone.
        """
        given = list(keys)
        rollouts = [self._rollouts[name] for name in {key[0] for key in given} if name in self._rollouts]
        agents = {self._agents[key] for key in given if key in self._agents}
        return all(_alike([each.final(agent) for each in rollouts]) for agent in agents)


def only_finals(trajectory: Trajectory) -> Trajectory:
    """The trajectory as if there were no intermediate rewards."""
    transitions = tuple(replace(t, reward=0.0) for t in trajectory.transitions)
    return replace(trajectory, transitions=transitions, intermediate=0.0)


def least_unit(peers: int) -> float:
    """The formula above for n peers."""
    return math.sqrt(peers - 1) / peers


def _alike(values: list[float]) -> bool:
    return max(values, default=0.0) - min(values, default=0.0) <= EPSILON


# transitions sorted into comparisons, each rollout one peer -----------------------------------------
Label = TypeVar("Label", bound=Hashable)


def peers_by(
    label: Callable[[Transition], Label | None], group: Sequence[Trajectory], returns: Mapping[Key, float]
) -> dict[Label, tuple[Peer, ...]]:
    """For each label of a trained transition a peer for each rollout: the returns of those that have it.

    A rollout without any is an empty peer. A transition labelled None is left out.
    """
    sorted_out: dict[Label, list[dict[Key, float]]] = {}
    for place, trajectory in enumerate(group):
        for t in trajectory.transitions:
            if t.trained and (named := label(t)) is not None:
                peers = sorted_out.setdefault(named, [{} for _ in group])
                peers[place][t.key] = returns[t.key]
    return {named: tuple(peers) for named, peers in sorted_out.items()}


def with_others(
    peers: Sequence[Peer],
    group: Sequence[Trajectory],
    agent: str,
    parts: Callable[[Key], Sequence[Part]] = _no_parts,
) -> Comparison:
    """Compare an agent's peers; a rollout alone is compared with the whole returns of the others."""
    there = [peer for peer in peers if peer]
    if len(there) > 1:
        return Comparison(tuple(peers), parts=parts)
    others = [
        {(each.rollout_id, "", 0): total_return(each, agent)}
        for each, peer in zip(group, peers, strict=True)
        if not peer
    ]
    credited = frozenset(key for peer in there for key in peer)
    return Comparison((*there, *others), credited=credited, parts=parts)


def turn_numbers(trajectory: Trajectory) -> dict[Key, int]:
    """Which call of its agent each transition is, from 0; the choices of a call are one turn."""
    calls: defaultdict[str, dict[str, int]] = defaultdict(dict)
    return {t.key: calls[t.agent].setdefault(t.call_id, len(calls[t.agent])) for t in trajectory.transitions}
