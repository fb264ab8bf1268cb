"""Peers: the transitions of a group sorted into comparisons, each rollout one peer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from lightning_core.credit.base import Comparison, Peer, total_return
from lightning_core.types import Key, Trajectory, Transition

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


def with_others(peers: Sequence[Peer], group: Sequence[Trajectory], agent: str) -> Comparison:
    """Compare an agent's peers; a rollout alone is compared with the whole returns of the others."""
    there = [peer for peer in peers if peer]
    if len(there) > 1:
        return Comparison(tuple(peers))
    others = [
        {(each.rollout_id, "", 0): total_return(each, agent)}
        for each, peer in zip(group, peers, strict=True)
        if not peer
    ]
    return Comparison((*there, *others), credited=frozenset(key for peer in there for key in peer))


def turn_numbers(trajectory: Trajectory) -> dict[Key, int]:
    """Which call of its agent each transition is, from 0; the choices of a call are one turn."""
    calls: defaultdict[str, dict[str, int]] = defaultdict(dict)
    return {t.key: calls[t.agent].setdefault(t.call_id, len(calls[t.agent])) for t in trajectory.transitions}
