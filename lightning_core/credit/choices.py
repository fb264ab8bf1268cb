"""Choices: of the replies that one call sampled (`n > 1`), those that the app went on with.

What the app dropped led to nothing, so what came afterwards is not its doing: such a choice is in no
comparison and gets no advantage. Which choice it was is told by the prompts of later calls: the one whose
reply they repeat furthest, the first of equals. If several are gone on with, as in a search, all of them
count. If no prompt tells, as when the replies are only read, the first choice counts: the choices of a call
are alike before they are seen, so on average it stands for each.
"""

from __future__ import annotations

from dataclasses import replace

from lightning_core.credit.branches import find_parents
from lightning_core.sequences import common, spell
from lightning_core.types import Trajectory, Transition


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
