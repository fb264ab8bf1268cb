"""Where a run's time goes, and runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from lightning_core.console.asking import Question
from lightning_core.console.shelf import Found
from lightning_core.errors import ConfigError, LightningError
from lightning_core.insight.bottleneck import bottleneck, by_agent, by_tool, engine_share, parts, straggling
from lightning_core.insight.compare import History, advise, compare
from lightning_core.insight.curves import Bucket

_LATEST: Final = 3
"""Steps whose calls and tools are looked at."""
_MOST: Final = 50
"""Runs that advice is made of."""


async def show_time(question: Question) -> dict[str, Any]:
    """Shares of the steps, the calls and tools of the latest ones, and what to change about what is large."""
    store, found = await question.run()
    metrics = await store.list_metrics(found.run_id)
    rollouts = [
        rollout
        for each in metrics[-_LATEST:]
        for rollout in await store.find_rollouts(found.run_id, step=each.step, split="train")
    ]
    ids = [rollout.id for rollout in rollouts]
    calls = list(chain(*(await store.get_calls(ids)).values()))
    events = list(chain(*(await store.get_events(ids)).values()))
    return {
        "steps": len(metrics),
        "seconds": sum(each.values.get("step_seconds", 0.0) for each in metrics),
        "parts": [asdict(each) for each in parts(metrics)],
        "engine": engine_share(metrics),
        "straggling": asdict(straggling(rollouts)),
        "latest": [each.step + 1 for each in metrics[-_LATEST:]],
        "agents": [asdict(each) for each in by_agent(calls)],
        "tools": [asdict(each) for each in by_tool(events)],
        "findings": [asdict(each) for each in bottleneck(metrics, rollouts, calls, events)],
    }


async def show_comparison(question: Question) -> dict[str, Any]:
    """Runs side by side: settings that differ, reward curves on one axis, and the same held-out tasks."""
    names = question.words("with")
    if not names:
        raise ConfigError("compare which runs? add with=NAME for each")
    found = [await question.shelf.get(name) for name in names]
    made = compare([await _history(question, one) for one in found])
    return {
        "runs": names,
        "settings": {name: list(values) for name, values in made.settings.items()},
        "curves": {
            name: [[_point(bucket) for bucket in buckets] for buckets in made.curves[name]]
            for name in ("reward", "entropy", "grad_norm")
            if name in made.curves
        },
        "tasks": [{"task": task, "rewards": list(rewards)} for task, rewards in _parted(made.tasks)],
        "equal": sum(len(set(rewards)) == 1 for rewards in made.tasks.values()),
    }


async def show_advice(question: Question) -> list[dict[str, Any]]:
    """What all runs of the shelf say about the settings in which alone they differ."""
    histories = []
    for one in (await question.shelf.list())[:_MOST]:
        try:
            histories.append(await _history(question, one))
        except LightningError:  # the list of runs says why it can't be read
            continue
    return [{**asdict(each), "message": each.message} for each in advise(histories)]


async def _history(question: Question, found: Found) -> History:
    store = await question.shelf.read(found)
    run = await store.find_run(found.run_id)
    if run is None:
        raise ConfigError(f"run {found.run_id!r} has not begun")
    evaluated = [one.step for one in await store.count_rollouts(run.id) if one.split == "validation"]
    held_out = await store.find_rollouts(run.id, step=max(evaluated), split="validation") if evaluated else []
    greedy = [one for one in held_out if one.sampling.temperature == 0.0 and one.status.finished]
    return History(run, await store.list_metrics(run.id), greedy)


def _point(bucket: Bucket) -> tuple[int, float]:
    return bucket.step + 1, bucket.mean


def _parted(
    tasks: Mapping[str, tuple[float | None, ...]],
) -> Sequence[tuple[str, tuple[float | None, ...]]]:
    """The tasks on which the runs part, those furthest apart first."""
    apart = {task: [one for one in rewards if one is not None] for task, rewards in tasks.items()}
    spread = {task: max(rewards) - min(rewards) for task, rewards in apart.items() if rewards}
    return [(task, tasks[task]) for task in sorted(spread, key=lambda task: -spread[task]) if spread[task]][
        :100
    ]


ANSWERS: Final = MappingProxyType({"time": show_time, "compare": show_comparison, "advice": show_advice})
