"""Which runs there are, how one stands, where its time goes, and runs side by side.

How one stands: its numbers, evaluations, alerts and members.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from lightning_core.console.asking import PageRequest
from lightning_core.console.shelf import Found
from lightning_core.errors import ConfigError, LightningError
from lightning_core.experience.transitions import last_planned
from lightning_core.insight.bottleneck import (
    bottleneck,
    by_agent,
    by_tool,
    cores_share,
    engine_share,
    parts,
    step_seconds,
    straggling,
)
from lightning_core.insight.compare import History, advise, compare, compare_trials
from lightning_core.insight.curves import Bucket, curves, width_of
from lightning_core.insight.rewards import agent_changes, change, reward_curve, training_change
from lightning_core.insight.status import ENDED, is_served, state_of
from lightning_core.insight.verdict import verdict
from lightning_core.records.types import Member, Metrics, Rollout, RolloutCount, Run, Status
from lightning_core.stores.base import Store, get_run
from lightning_core.stores.heartbeat import living
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.report import (
    NAMED_VERSIONS,
    agent_summaries,
    evaluation,
    find_evidence,
    find_whole_evaluation,
    model_name,
    settings_of,
    task_text,
)

_POINTS: Final = 800
"""Steps that are sent as they are; of more steps, points."""
_LISTED: Final = 50
"""Runs of which more than the name is read."""
_LATEST: Final = 3
"""Steps whose calls and tools are looked at."""


async def list_runs(question: PageRequest) -> list[dict[str, Any]]:
    """All runs, the newest first, each with how it stands; one that can't be read says why."""
    found = await question.shelf.list()
    stand = [await _standing(question, one) for one in found[:_LISTED]]
    return [{"name": one.name, **more} for one, more in zip(found, stand, strict=False)]


async def _standing(question: PageRequest, found: Found) -> dict[str, Any]:
    try:
        store = await question.shelf.read(found)
        run = await store.find_run(found.run_id)
        members = await store.list_members(found.run_id)
        counts = await store.count_rollouts(found.run_id)
        metrics = await store.list_metrics(found.run_id)
    except LightningError as error:
        return {"error": str(error)}
    rewards = reward_curve(metrics)[1]
    held_out = [one["greedy"] for one in await _evaluations(question, store, run, counts, ends=True)]
    told = change(held_out, rewards)
    return {
        "status": state_of(run, members, _held(found)),
        "created_at": run.created_at if run else None,
        "model": model_name(run) if run else None,
        "script": run.provenance.get("script") if run else None,
        "steps": len(metrics),
        "rollouts": sum(one.count for one in counts),
        "rewards": rewards,
        "change": None if told is None else asdict(told),
        "reason": _reason(run),
    }


async def show_run(question: PageRequest) -> dict[str, Any]:
    """One run. With `since` only the numbers of that step and later ones, by agents too.

    A long run's columns are thinned, so they tell neither how many updates there were nor how long they took.
    """
    store, found = await question.run()
    since = question.number("since")
    run = await store.find_run(found.run_id)
    metrics, counts, members, alerts = await asyncio.gather(
        store.list_metrics(found.run_id, since=since),
        store.count_rollouts(found.run_id),
        store.list_members(found.run_id),
        store.list_alerts(found.run_id),
    )
    newest = metrics[-1].step if metrics else (since or 0) - 1
    return {
        "name": found.name,
        "folder": str(found.folder) if found.folder else None,
        "status": state_of(run, members, _held(found)),
        **_origin(run),
        **columns(metrics),
        "updates": metrics[-1].step + 1 if metrics else 0,
        "seconds": step_seconds(metrics),
        "agents": [{"name": name, **each.model_dump()} for name, each in agent_summaries(metrics).items()],
        "counts": Counter(
            {str(status): sum(one.count for one in counts if one.status is status) for status in Status}
        ),
        "evaluations": await _evaluations(question, store, run, counts),
        **await _learnt(question, store, run, counts, newest),
        "reason": _reason(run),
        "served": is_served(members),
        "alerts": [alert.model_dump(mode="json") for alert in alerts],
        "members": [_member(each, members) for each in members],
    }


def columns(metrics: Sequence[Metrics]) -> dict[str, Any]:
    """The numbers as columns: the updates made, and for each name its values; null is none.

    A long run is thinned: the least and the most of some steps in a row stand at the first and last of them.
    """
    if len(metrics) <= _POINTS:
        names = sorted({name for each in metrics for name in each.values})
        values = {name: [each.values.get(name) for each in metrics] for name in names}
        return {"steps": [each.step + 1 for each in metrics], "columns": values}
    found = curves(metrics, _POINTS // 2)
    spans = sorted({(each.step, each.last) for each in found["step_seconds"]})
    width = width_of(metrics[0].step, metrics[-1].step, _POINTS // 2)
    values = {name: _zigzag(buckets, spans, width) for name, buckets in found.items()}
    return {"steps": [step + 1 for span in spans for step in span], "columns": values}


def _zigzag(buckets: Sequence[Bucket], spans: Sequence[tuple[int, int]], width: int) -> list[float | None]:
    there = {each.step // width: each for each in buckets}
    found = [there.get(first // width) for first, _ in spans]
    return [value for each in found for value in ((each.least, each.most) if each else (None, None))]


def _held(found: Found) -> bool | None:
    """Whether a process of this machine has its folder open."""
    return None if found.folder is None else RunFolder(found.folder, resume=True).held


def _origin(run: Run | None) -> dict[str, Any]:
    origin: Mapping[str, Any] = run.provenance if run else {}
    versions: Mapping[str, str] = origin.get("versions", {})
    return {
        "created_at": run.created_at if run else None,
        "script": origin.get("script"),
        "command": origin.get("command", []),
        "git": origin.get("git"),
        "machine": origin.get("machine", {}),
        "settings": settings_of(run),
        "versions": {name: versions[name] for name in NAMED_VERSIONS if name in versions},
    }


async def _evaluations(
    question: PageRequest,
    store: Store,
    run: Run | None,
    counts: Sequence[RolloutCount],
    *,
    ends: bool = False,
) -> list[dict[str, Any]]:
    """How the evaluations that have ended went, sampled and greedy; each is read once. `ends`: the first and
    the last of them alone."""
    if run is None:
        return []
    ended = Counter[int]()
    for one in counts:
        if one.split == "validation":
            ended[one.step] += one.count if one.status.finished else 0
    still = {one.step for one in counts if one.split == "validation" and not one.status.finished}
    made = []
    steps = sorted(set(ended) - still)
    for step in steps[:1] + steps[1:][-1:] if ends else steps:
        key = run.id, run.created_at, step, ended[step]
        if key not in question.shelf.evaluated:
            question.shelf.evaluated[key] = await _evaluation(store, run, step)
        if (one_evaluation := question.shelf.evaluated[key]) is not None:
            made.append(one_evaluation)
    return made


async def _evaluation(store: Store, run: Run, step: int) -> dict[str, Any] | None:
    found = await store.find_rollouts(run.id, step=step, split="validation")
    planned = [each for each in last_planned(found) if each.status is not Status.CANCELLED]
    if not {each.sampling.temperature for each in planned} >= {0.0, 1.0}:
        return None
    return evaluation(step, planned, {}, {}, settings_of(run).get("group_by")).model_dump(mode="json")


async def _learnt(
    question: PageRequest, store: Store, run: Run | None, counts: Sequence[RolloutCount], newest: int
) -> dict[str, Any]:
    """Verdict, training reward and agents of a run that has begun; made when more rollouts have ended than at
    the last look, or when there is a newer step than `newest` was then."""
    ended = sum(one.count for one in counts if one.status.finished)
    if run is None or not ended:
        return {"verdict": None, "training": None, "agent_rewards": {}}
    key = run.id, run.created_at
    known, found = question.shelf.verdicts.get(key, (None, {}))
    if known != (ended, newest):
        metrics = await store.list_metrics(run.id)
        training = training_change(reward_curve(metrics)[1])
        found = {
            "verdict": verdict(await find_evidence(store, run, metrics, counts)).model_dump(mode="json"),
            "training": None if training is None else asdict(training),
            "agent_rewards": {name: asdict(each) for name, each in agent_changes(metrics).items()},
        }
        question.shelf.verdicts[key] = (ended, newest), found
    return found


def _reason(run: Run | None) -> str | None:
    """Why a run ended before its time; None if it did not, or does not say."""
    return None if run is None else str(run.config.get(ENDED) or "") or None


def _member(member: Member, members: Sequence[Member]) -> dict[str, Any]:
    return {
        "role": member.role,
        "name": member.name,
        "host": member.data.get("host"),
        "pid": member.data.get("pid"),
        "url": member.url,
        "seen_at": member.seen_at,
        "alive": member in living(members),
    }


# the time of a run, and runs side by side ------------------------------------------------------
async def show_time(question: PageRequest) -> dict[str, Any]:
    """Shares of the steps, the calls and tools of the latest ones, and what to change about what is large."""
    store, found = await question.run()
    run = await store.find_run(found.run_id)
    machine: Any = run.provenance.get("machine") or {} if run else {}
    cores = machine.get("cores")
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
        "seconds": step_seconds(metrics),
        "parts": [asdict(each) for each in parts(metrics)],
        "engine": engine_share(metrics),
        "cores": cores_share(metrics, cores) if cores else None,
        "straggling": asdict(straggling(rollouts)),
        "latest": [each.step + 1 for each in metrics[-_LATEST:]],
        "agents": [asdict(each) for each in by_agent(calls)],
        "tools": [asdict(each) for each in by_tool(events)],
        "findings": [asdict(each) for each in bottleneck(metrics, rollouts, calls, events, machine)],
    }


async def show_comparison(question: PageRequest) -> dict[str, Any]:
    """Runs side by side: settings that differ, reward curves on one axis, and the same held-out tasks."""
    names = question.words("with")
    if not names:
        raise ConfigError("compare which runs? add with=NAME for each")
    found = [await question.shelf.get(name) for name in names]
    histories = [await _history(question, one, metrics=True) for one in found]
    made = compare(histories)
    shown = {rollout.task.id: task_text(rollout.task) for one in histories for rollout in one.held_out}
    return {
        "runs": names,
        "settings": {name: list(values) for name, values in made.settings.items()},
        "curves": {
            name: [[(each.step + 1, each.mean) for each in buckets] for buckets in of_runs]
            for name, of_runs in made.curves.items()
        },
        "held_out": [_held_out(histories[0], one) for one in histories],
        "tasks": [
            {"task": task, "shown": shown[task], "rewards": list(rewards)}
            for task, rewards in _parted(made.tasks)
        ],
        "shared": sum(None not in rewards for rewards in made.tasks.values()),
        "equal": sum(len(set(rewards)) == 1 for rewards in made.tasks.values()),
    }


def _held_out(first: History, other: History) -> dict[str, Any]:
    """Returns a run's reward at its last evaluation, and its difference to the first run on the tasks of
    both."""
    both = compare_trials(first.held_out, other.held_out)
    return {
        "tasks": len(other.held_out),
        "mean": other.score,
        "shared": len(both.tasks),
        "difference": both.difference,
        "low": both.low,
        "high": both.high,
    }


async def show_advice(question: PageRequest) -> list[dict[str, Any]]:
    """Returns the evidence of all runs of the shelf about the settings in which alone they differ."""
    histories = []
    for one in (await question.shelf.list())[:_LISTED]:
        try:
            histories.append(await _history(question, one))
        except LightningError:  # the list of runs says why it can't be read
            continue
    return [{**asdict(each), "message": each.message} for each in advise(histories)]


async def _history(question: PageRequest, found: Found, *, metrics: bool = False) -> History:
    store = await question.shelf.read(found)
    run = await get_run(store, found.run_id)
    greedy = [one for one in await _last_evaluation(store, run.id) if one.sampling.temperature == 0.0]
    return History(run, await store.list_metrics(run.id) if metrics else (), greedy)


async def _last_evaluation(store: Store, run_id: str) -> list[Rollout]:
    """The rollouts of the newest evaluation that is whole."""
    steps = {one.step for one in await store.count_rollouts(run_id) if one.split == "validation"}
    for step in sorted(steps, reverse=True):
        if found := await find_whole_evaluation(store, run_id, step):
            return found
    return []


def _parted(
    tasks: Mapping[str, tuple[float | None, ...]],
) -> Sequence[tuple[str, tuple[float | None, ...]]]:
    """The tasks on which the runs part, those furthest apart first."""
    apart = {task: [one for one in rewards if one is not None] for task, rewards in tasks.items()}
    spread = {task: max(rewards) - min(rewards) for task, rewards in apart.items() if rewards}
    parted = sorted((task for task in spread if spread[task]), key=lambda task: -spread[task])
    return [(task, tasks[task]) for task in parted[:100]]


ANSWERS: Final = MappingProxyType(
    {
        "runs": list_runs,
        "run": show_run,
        "time": show_time,
        "compare": show_comparison,
        "advice": show_advice,
    }
)
