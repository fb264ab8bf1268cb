"""Branches: which call of a rollout goes on from which, told by their tokens; and what came of each.

    parent(t) = the earlier call whose prompt begins this prompt, and which has most tokens in common with it

counting its reply. A conversation that goes on holds the earlier prompt and the earlier reply, so its
parent is the call whose reply it repeats. Where the history was changed (a reply cut, summarised or
rendered again) the prompt alone still tells. Calls with the very same prompt are siblings. Order decides
only between equals: the latest. Calls that share no prompt, such as those of a planner and of its workers,
are branches of their own.

Observation tokens lie inside the later prompts, so a reward passes over them to the earlier turns.

Of the replies that one call sampled (`n > 1`) only those count that the app went on with. What it dropped
led to nothing, so what came afterwards is not its doing: such a choice is in no
comparison and gets no advantage. Which choice it was is told by the prompts of later calls: the one whose
reply they repeat furthest, the first of equals. If several are gone on with, as in a search, all of them
count. If no prompt tells, as when the replies are only read, the first choice counts: the choices of a call
are alike before they are seen, so on average it stands for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from lightning_core.records.sequences import common, prefixes, spell, spell_each
from lightning_core.records.types import Key, Trajectory, Transition


@dataclass(frozen=True, slots=True)
class Branches:
    """The transitions of one rollout as a forest; a place is an index into them."""

    transitions: tuple[Transition, ...]
    children: tuple[tuple[int, ...], ...]
    """The places of each transition's children, all after its own."""

    def rewards_after(self, place: int) -> float:
        """Returns the reward of the calls right after this one; the choices of a call share one reward."""
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
    prompts = spell_each([t.prompt_ids for t in transitions], [()] * len(transitions))
    replies = [spell(t.completion_ids) for t in transitions]
    longest = max(map(len, replies), default=0)
    parents: list[int | None] = [None] * len(transitions)
    for place, stack in prefixes(prompts):
        best = (0, 0, -1)
        for places in islice(reversed(stack), 1, None):
            before = prompts.sizes[places[0]]
            if before + longest < best[0]:  # no shorter prompt with any reply shares more
                break
            for other in places:
                if before and other < place and before + len(replies[other]) >= best[0]:
                    shared = before + 4 * common(replies[other], prompts.part(place, before))
                    best = max(best, (shared, before, other))
        parents[place] = best[2] if best[0] else None
    return parents


def returns_to_go(trajectory: Trajectory, discount: float = 1.0) -> dict[Key, float]:
    """Returns the discounted return after each transition in its branch, by the distance in turns:

        G(t) = discount^(turns to the end) * R + sum over t and its descendants u of discount^(distance) * r_u

    R also holds the intermediate rewards of calls that are no transition. Where branches part, the end is the
    end of the longest.
    """
    ahead = rewards_ahead(trajectory, discount)
    unaddressed = reward_without_call(trajectory)
    return {
        t.key: discount**left * (trajectory.final(t.agent) + unaddressed) + t.reward + later
        for t, (left, later) in zip(trajectory.transitions, ahead, strict=True)
    }


def rewards_ahead(trajectory: Trajectory, discount: float) -> list[tuple[int, float]]:
    """Returns, for each transition, the turns to the end and the discounted intermediate rewards of later
    turns."""
    tree = branches(trajectory)
    left = [0] * len(tree.transitions)
    later = [0.0] * len(tree.transitions)
    for place in reversed(range(len(left))):
        below = tree.children[place]
        left[place] = 1 + max(left[i] for i in below) if below else 0
        later[place] = discount * (tree.rewards_after(place) + sum(later[i] for i in below))
    return list(zip(left, later, strict=True))


def reward_without_call(trajectory: Trajectory) -> float:
    """The intermediate rewards that are addressed to no transition; they count like the final one."""
    addressed = {t.call_id: t.reward for t in trajectory.transitions}
    return trajectory.intermediate - sum(addressed.values())


# the choices of a call ------------------------------------------------------------------------------
def without_dropped(trajectory: Trajectory) -> Trajectory:
    """The trajectory without the choices that the app dropped."""
    calls: dict[str, list[Transition]] = {}
    for t in trajectory.transitions:
        calls.setdefault(t.call_id, []).append(t)
    if len(calls) == len(trajectory.transitions):
        return trajectory
    gone_on_with = set()
    for place, parent in enumerate(find_parents(trajectory.transitions)):
        if parent is not None:
            siblings = calls[trajectory.transitions[parent].call_id]
            gone_on_with.add(_repeated(siblings, trajectory.transitions[place]).key)
    for choices in calls.values():
        if not any(choice.key in gone_on_with for choice in choices):
            gone_on_with.add(choices[0].key)
    kept = tuple(t for t in trajectory.transitions if t.key in gone_on_with)
    return replace(trajectory, transitions=kept)


def _repeated(choices: list[Transition], later: Transition) -> Transition:
    """The choice whose reply is repeated furthest in a later prompt; the first of equals."""
    rest = spell(later.prompt_ids[len(choices[0].prompt_ids) :])
    return max(choices, key=lambda choice: common(spell(choice.completion_ids), rest))
