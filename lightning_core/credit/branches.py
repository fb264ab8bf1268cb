"""Branches: which call of a rollout goes on from which, told by their tokens; and what came of each.

    parent(t) = the earlier call whose prompt begins this prompt, and which has most tokens in common with it

counting its reply. A conversation that goes on holds the earlier prompt and the earlier reply, so its
parent is the call whose reply it repeats. Where the history was changed (a reply cut, summarised or
rendered again) the prompt alone still tells. Calls with the very same prompt are siblings. Order decides
only between equals: the latest. Calls that share no prompt, such as those of a planner and of its workers,
are branches of their own.

Observation tokens lie inside the later prompts, so a reward passes over them to the earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from lightning_core.sequences import common, prefixes, spell
from lightning_core.types import Key, Trajectory, Transition


@dataclass(frozen=True, slots=True)
class Branches:
    """The transitions of one rollout as a forest; a place is an index into them."""

    transitions: tuple[Transition, ...]
    children: tuple[tuple[int, ...], ...]
    """The places of each transition's children, all after its own."""

    def rewards_after(self, place: int) -> float:
        """What the calls right after this one earned; the choices of a call bear one reward together."""
        once = {self.transitions[i].call_id: self.transitions[i].reward for i in self.children[place]}
        return sum(once.values())


def branches(trajectory: Trajectory) -> Branches:
    """The branches of a rollout."""
    children: list[list[int]] = [[] for _ in trajectory.transitions]
    for place, parent in enumerate(find_parents(trajectory.transitions)):
        if parent is not None:
            children[parent].append(place)
    return Branches(trajectory.transitions, tuple(map(tuple, children)))


def find_parents(transitions: Sequence[Transition]) -> list[int | None]:
    """The place of each transition's parent, None for the first of a branch."""
    prompts = [spell(t.prompt_ids) for t in transitions]
    replies = [spell(t.completion_ids) for t in transitions]
    longest = max(map(len, replies), default=0)
    parents: list[int | None] = [None] * len(transitions)
    for place, stack in prefixes(prompts):
        best = (0, 0, -1)
        for before, places in islice(reversed(stack), 1, None):
            if len(before) + longest < best[0]:  # no shorter prompt with any reply shares more
                break
            for other in places:
                if before and other < place and len(before) + len(replies[other]) >= best[0]:
                    shared = len(before) + 4 * common(replies[other], prompts[place][len(before) :])
                    best = max(best, (shared, len(before), other))
        parents[place] = best[2] if best[0] else None
    return parents


def returns_to_go(trajectory: Trajectory, discount: float = 1.0) -> dict[Key, float]:
    """What came after each transition in its branch, by the distance in turns:

        G(t) = discount^(turns to the end) * R + sum over t and its descendants u of discount^(distance) * r_u

    R also holds the intermediate rewards of calls that are no transition. Where branches part, the end is the
    end of the longest.
    """
    tree = branches(trajectory)
    left = [0] * len(tree.transitions)
    later = [0.0] * len(tree.transitions)
    for place in reversed(range(len(left))):
        below = tree.children[place]
        left[place] = 1 + max(left[i] for i in below) if below else 0
        later[place] = discount * (tree.rewards_after(place) + sum(later[i] for i in below))
    unaddressed = reward_without_call(trajectory)
    return {
        t.key: discount ** left[place] * (trajectory.final(t.agent) + unaddressed) + t.reward + later[place]
        for place, t in enumerate(tree.transitions)
    }


def reward_without_call(trajectory: Trajectory) -> float:
    """The intermediate rewards that are addressed to no transition; they count like the final one."""
    addressed = {t.call_id: t.reward for t in trajectory.transitions}
    return trajectory.intermediate - sum(addressed.values())
