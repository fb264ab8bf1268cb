"""`curriculum=`: tasks are drawn more often where rollouts still fall short of the best reward.

Tasks are sorted by a field. Each of n values of it has a share of a step's groups: one half of the groups go
to all values alike, the other half in proportion to

    (shortfall + 1) / (groups + 2)        over its last `RECENT` groups

A group's shortfall is the mean over its rollouts of (best - reward) / (best - worst), with the best and the
worst reward of the run so far. So a kind of task that is solved is asked less often, and one that is not
solved yet more often, even if it never was: only by trying is a first success found.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Final

from lightning_core.records.types import Rollout, Task
from lightning_core.trainer.plan import shuffled

RECENT: Final = 6
"""Groups of a value."""
Groups = Sequence[tuple[str, Sequence[float]]]
"""The groups of a step: the value of the task's field, and the rewards that are known."""


def value_of(task: Task, field: str) -> str:
    """The value of the field, as text; "null" for a task without it."""
    return json.dumps(task.input.get(field), sort_keys=True)


def read_groups(rollouts: Iterable[Rollout], field: str, count: int) -> Groups:
    """Returns the value and the rewards of the first `count` groups of a step; dropped rollouts have none.

    The groups after them were added by dynamic sampling, and say nothing about what was drawn.
    """
    groups: dict[int, tuple[str, list[float]]] = {}
    for rollout in rollouts:
        place = int(str(rollout.place).partition("-")[0])
        _, rewards = groups.setdefault(place, (value_of(rollout.task, field), []))
        if rollout.reward is not None:
            rewards.append(rollout.reward)
    return [groups[place] for place in sorted(groups) if place < count]


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
    groups = [group for each in sorted(before) for group in before[each]]
    shares = _shares(by_value, groups)
    rng = random.Random(f"{seed}-{step}-curriculum")
    order = list(shares)
    rng.shuffle(order)
    streams = {
        value: shuffled(len(own), sum(each == value for each, _ in groups), f"{seed}-{value}")
        for value, own in by_value.items()
    }
    places = _spread(order, [shares[value] for value in order], count, rng.random())
    drawn = [by_value[value][next(streams[value])] for value in places]
    rng.shuffle(drawn)
    return drawn


def _shares(values: Iterable[str], groups: Groups) -> dict[str, float]:
    """The share of each value; they add up to 1."""
    rewards = list(chain.from_iterable(own for _, own in groups))
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    recent = {value: deque[float](maxlen=RECENT) for value in values}
    for value, own in groups:
        if own and best > worst:
            recent[value].append((best - fmean(own)) / (best - worst))
    needs = {value: (sum(each) + 1) / (len(each) + 2) for value, each in recent.items()}
    total = sum(needs.values())
    return {value: 0.5 / len(needs) + 0.5 * need / total for value, need in needs.items()}


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
