"""Runs side by side: which settings differ, the same held-out tasks, and what history says about a setting.

Nothing here predicts. A difference between two values of a setting comes with the interval that resampling
the runs gives it (Efron's bootstrap, percentiles), and below three runs on a side there is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final

from pydantic import JsonValue

from lightning_core.experience.returns import reward_of
from lightning_core.insight.curves import Bucket, curves
from lightning_core.records.types import Metrics, Rollout, Run

LEAST: Final = 3
"""Runs on each side of a comparison."""
RESAMPLED: Final = 2000
DRAWN: Final = ("reward", "entropy", "grad_norm")
"""The metrics whose curves are compared."""
IGNORED: Final = frozenset(
    {"seed", "folder", "resume", "store", "listen", "address", "progress", "trackers", "alerts"}
)
"""Settings that say where or how a run was watched, not how it learnt."""


@dataclass(frozen=True, slots=True)
class History:
    """The records of a run that a comparison needs."""

    run: Run
    metrics: Sequence[Metrics] = ()
    held_out: Sequence[Rollout] = ()
    """The greedy rollouts of its last evaluation."""

    @property
    def score(self) -> float | None:
        """Mean final reward of the held-out tasks; one that failed counts 0. None without any."""
        return fmean(map(reward_of, self.held_out)) if self.held_out else None

    @property
    def settings(self) -> dict[str, JsonValue]:
        """All settings it was begun with."""
        found = self.run.provenance.get("settings", {})
        return dict(found) if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Runs side by side; all lists are in the order of the runs."""

    settings: Mapping[str, tuple[JsonValue, ...]]
    """Settings that differ, but for the folder, with the value of each run; None where a run has none."""
    curves: Mapping[str, tuple[tuple[Bucket, ...], ...]]
    """Each metric of `DRAWN` that any run has, on one axis."""
    tasks: Mapping[str, tuple[float | None, ...]]
    """The reward of each held-out task; None where a run was not asked it."""


def compare(histories: Sequence[History], budget: int = 400) -> RunComparison:
    """The runs side by side."""
    names = sorted({name for one in histories for name in one.settings} - {"folder"})
    settings = {name: tuple(one.settings.get(name) for one in histories) for name in names}
    drawn = [curves(one.metrics, budget, DRAWN) for one in histories]
    rewards = [{rollout.task.id: reward_of(rollout) for rollout in one.held_out} for one in histories]
    tasks = list(dict.fromkeys(task for one in rewards for task in one))
    return RunComparison(
        {name: values for name, values in settings.items() if any(one != values[0] for one in values)},
        {
            name: tuple(one.get(name, ()) for one in drawn)
            for name in DRAWN
            if any(name in one for one in drawn)
        },
        {task: tuple(one.get(task) for one in rewards) for task in tasks},
    )


@dataclass(frozen=True, slots=True)
class Advice:
    """The evidence of a script's runs about a setting in which alone they differ."""

    setting: str
    values: tuple[JsonValue, JsonValue]
    runs: tuple[int, int]
    """How many had each."""
    difference: float | None
    """Mean score with the second value less that with the first; None without enough runs."""
    low: float | None
    high: float | None
    """The 95 % interval."""

    @property
    def message(self) -> str:
        first, second = self.values
        said = f"{self.setting}={second!r} against {first!r}"
        if self.difference is None or self.low is None or self.high is None:
            return f"{said}: not enough runs ({self.runs[1]} and {self.runs[0]}; {LEAST} each are needed)"
        sure = "" if self.low <= 0 <= self.high else " (the interval leaves 0 out)"
        return (
            f"{said}: {self.difference:+.3f} of the final greedy score, 95 % interval {self.low:+.3f} to "
            f"{self.high:+.3f}{sure}, {self.runs[1]} and {self.runs[0]} runs"
        )


def advise(histories: Sequence[History]) -> list[Advice]:
    """For each setting in which runs of one script differ and in nothing else but the seed: how their scores
    differ. What has the most runs comes first."""
    found: dict[tuple[str, str, str], Advice] = {}
    for name, groups in _alone(histories):
        values = sorted(groups, key=repr)
        for place, first in enumerate(values):
            for second in values[place + 1 :]:
                made = _advice(name, groups[first], groups[second])
                key = (name, first, second)
                if key not in found or sum(made.runs) > sum(found[key].runs):
                    found[key] = made
    return sorted(found.values(), key=lambda one: (one.difference is None, -min(one.runs), one.setting))


_Scored = list[tuple[JsonValue, float]]


def _alone(histories: Sequence[History]) -> Iterator[tuple[str, dict[str, _Scored]]]:
    """Settings with the (value, score) of runs that are equal in all other settings, by value."""
    scored = [(one, score) for one in histories if (score := one.score) is not None]
    names = sorted({name for one, _ in scored for name in one.settings} - IGNORED)
    for name in names:
        strata: defaultdict[str, defaultdict[str, _Scored]] = defaultdict(lambda: defaultdict(list))
        for one, score in scored:
            rest = {k: v for k, v in one.settings.items() if k != name and k not in IGNORED}
            value = one.settings.get(name)
            strata[repr((one.run.provenance.get("script"), sorted(rest.items())))][repr(value)].append(
                (value, score)
            )
        for groups in strata.values():
            if len(groups) > 1:
                yield name, dict(groups)


def _advice(name: str, first: _Scored, second: _Scored) -> Advice:
    values, runs = (first[0][0], second[0][0]), (len(first), len(second))
    if min(runs) < LEAST:
        return Advice(name, values, runs, None, None, None)
    difference, low, high = difference_of([s for _, s in first], [s for _, s in second])
    return Advice(name, values, runs, difference, low, high)


@dataclass(frozen=True, slots=True)
class SettingTrial:
    """Two versions on the same tasks; a task counts once both have an end to show for it."""

    means: tuple[float | None, float | None]
    """Mean reward over the tasks of the first and of the second; one that failed counts 0."""
    difference: float | None
    low: float | None
    high: float | None
    """The 95 % interval of the difference over the tasks; None below three tasks."""
    tasks: Mapping[str, tuple[float, float]]
    """Mean reward of each task; those on which they part most come first."""


def compare_trials(first: Sequence[Rollout], second: Sequence[Rollout]) -> SettingTrial:
    """The two by task: the tasks are resampled, each with its own difference."""
    a, b = (_by_task(rollouts) for rollouts in (first, second))
    tasks = {task: (a[task], b[task]) for task in a if task in b}
    parted = dict(sorted(tasks.items(), key=lambda one: -abs(one[1][1] - one[1][0])))
    if not tasks:
        return SettingTrial((None, None), None, None, None, {})
    gains = [after - before for before, after in tasks.values()]
    difference, low, high = difference_of([0.0], gains)
    means = fmean(before for before, _ in tasks.values()), fmean(after for _, after in tasks.values())
    sure = len(tasks) >= LEAST
    return SettingTrial(means, difference, low if sure else None, high if sure else None, parted)


def _by_task(rollouts: Sequence[Rollout]) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in rollouts:
        if one.status.finished:
            found[one.task.id].append(reward_of(one))
    return {task: fmean(rewards) for task, rewards in found.items()}


def difference_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """(mean of `after` less mean of `before`, the bounds of its 95 % bootstrap interval). The same numbers
    give the same interval."""
    random = Random(0)
    drawn = sorted(
        fmean(random.choices(after, k=len(after))) - fmean(random.choices(before, k=len(before)))
        for _ in range(RESAMPLED)
    )
    cut = RESAMPLED // 40
    return fmean(after) - fmean(before), drawn[cut], drawn[-cut - 1]
