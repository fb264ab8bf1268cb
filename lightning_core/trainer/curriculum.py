"""Draws the tasks of a step by where groups still tell their rollouts apart.

Tasks are sorted by a field. Each value of it has a share of the groups of a step in proportion to

    (told + 1) / (groups + 2)        over its last `RECENT` groups

where a group told its rollouts apart if their rewards differed. So a kind of task that is always solved, or
never, is asked less often, and never not at all. Other measures of the same idea: Foster et al., learnability
p * (1 - p), arXiv 2408.15099.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lightning_core.records.types import Rollout, Task
from lightning_core.trainer.plan import shuffled

RECENT: Final = 6
"""Groups of a value."""
Groups = Sequence[tuple[str, bool | None]]
"""The groups of a step: the value of the task's field, and whether rewards differed; None: not known yet."""


def value_of(task: Task, field: str) -> str:
    """The value of the field, as text; "null" for a task without it."""
    return json.dumps(task.input.get(field), sort_keys=True)


def read_groups(rollouts: Iterable[Rollout], field: str) -> Groups:
    """Returns the value of each group, and whether its rewards differed; of dropped rollouts nothing."""
    rewards: dict[str, set[float]] = {}
    values: dict[str, str] = {}
    for rollout in rollouts:
        values[rollout.group_id] = value_of(rollout.task, field)
        found = rewards.setdefault(rollout.group_id, set())
        if rollout.reward is not None:
            found.add(rollout.reward)
    return [(values[group], len(found) > 1) for group, found in sorted(rewards.items())]


def draw(
    tasks: Sequence[Task], field: str, before: Mapping[int, Groups], step: int, count: int, seed: int
) -> list[Task]:
    """`count` tasks of a step, by the groups of the steps before it; a pure function.

    Values are drawn at equal distances along their added shares, from one random start, so that a share of
    2 / count gets two places. The tasks of a value come in shuffled passes over all of them.
    """
    by_value: dict[str, list[Task]] = {}
    for task in tasks:
        by_value.setdefault(value_of(task, field), []).append(task)
    recent = {value: deque[bool](maxlen=RECENT) for value in by_value}
    drawn_before = dict.fromkeys(by_value, 0)
    for value, differed in (group for each in sorted(before) for group in before[each]):
        drawn_before[value] += 1
        if differed is not None:
            recent[value].append(differed)
    shares = {value: (sum(each) + 1) / (len(each) + 2) for value, each in recent.items()}
    rng = random.Random(f"{seed}-{step}-curriculum")
    order = list(shares)
    rng.shuffle(order)
    places = _spread(order, [shares[value] for value in order], count, rng.random())
    streams = {
        value: shuffled(len(own), drawn_before[value], f"{seed}-{value}") for value, own in by_value.items()
    }
    drawn = [by_value[value][next(streams[value])] for value in places]
    rng.shuffle(drawn)
    return drawn


def _spread(order: Sequence[str], shares: Sequence[float], count: int, start: float) -> list[str]:
    """The value at each of `count` places, at equal distances along the added shares."""
    distance, reached, taken = sum(shares) / count, 0.0, 0
    places: list[str] = []
    for value, share in zip(order, shares, strict=True):
        reached += share
        while taken < count and (start + taken) * distance < reached:
            places.append(value)
            taken += 1
    return places
