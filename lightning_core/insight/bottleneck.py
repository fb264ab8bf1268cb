"""Where the time of a run goes, and the one thing to change about each part that is large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lightning_core.records.types import Call, Event, Metrics, Rollout, ToolEvent

LARGE: Final = 0.2
"""Share of a step from which on a part is worth a word."""
FULL: Final = 0.7
"""Share of the cores from which on more rollouts at once are not faster."""
_PARTS: Final[Mapping[str, str]] = {
    "collect_seconds": "collecting",
    "update_seconds": "updating",
    "publish_seconds": "publishing",
}


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the time."""

    name: str
    seconds: float
    share: float
    """Share of the whole, 0 to 1. Parts that overlap, as when rollouts go on during an update, add up to
    more."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Something that takes much of the time, with its numbers and one thing to change."""

    about: str
    message: str
    advice: str
    seconds: float
    share: float


def step_seconds(metrics: Sequence[Metrics]) -> float:
    """Wall time of the steps, as last made: collecting, updating, saving; evaluations are not in it."""
    return _sum(metrics, "step_seconds")


def parts(metrics: Sequence[Metrics]) -> list[StepPart]:
    """Returns the parts of the steps' time, the largest first; "other" is the time in no part."""
    whole = step_seconds(metrics)
    if whole <= 0:
        return []
    seconds = {name: _sum(metrics, metric) for metric, name in _PARTS.items()}
    seconds["other"] = max(0.0, whole - sum(seconds.values()))
    found = [StepPart(name, value, value / whole) for name, value in seconds.items()]
    return sorted(found, key=lambda part: -part.seconds)


def engine_share(metrics: Sequence[Metrics]) -> float | None:
    """The share of the steps in which engine or optimizer was busy; None if no backend measured it."""
    whole = sum(each.values["step_seconds"] for each in metrics if "backend_seconds" in each.values)
    return _sum(metrics, "backend_seconds") / whole if whole else None


def cores_share(metrics: Sequence[Metrics], cores: int) -> float | None:
    """The share of so many cores that the trainer's process used during the steps; None if no step says."""
    timed = [each for each in metrics if "process_seconds" in each.values]
    whole = step_seconds(timed) * cores
    return _sum(timed, "process_seconds") / whole if whole else None


@dataclass(frozen=True, slots=True)
class Straggling:
    """How long the rollouts of steps waited for the slowest."""

    seconds: float
    """From when nine in ten had finished until the last had."""
    whole: float
    """From when the first was enqueued until the last had finished."""
    slowest: tuple[str, ...]
    """The rollout that was last, of each step."""


def straggling(rollouts: Iterable[Rollout]) -> Straggling:
    """Measures how long the finished training rollouts of any steps kept others waiting."""
    steps: defaultdict[int, list[Rollout]] = defaultdict(list)
    for one in rollouts:
        if one.split == "train" and one.finished_at is not None:
            steps[one.step].append(one)
    seconds, whole, slowest = 0.0, 0.0, []
    for _, some in sorted(steps.items()):
        ends = sorted(some, key=lambda one: one.finished_at or 0.0)
        last, tenth = ends[-1], ends[(9 * len(ends)) // 10 - (len(ends) >= 10)]
        seconds += (last.finished_at or 0.0) - (tenth.finished_at or 0.0)
        whole += (last.finished_at or 0.0) - min(one.created_at for one in some)
        slowest.append(last.id)
    return Straggling(seconds, whole, tuple(slowest))


@dataclass(frozen=True, slots=True)
class Share:
    """The share of an agent or a tool."""

    name: str
    count: int
    seconds: float
    """Summed over calls, which may overlap."""
    longest: float


def by_agent(calls: Iterable[Call]) -> list[Share]:
    """Time in calls of each agent, the most first."""
    return _shares((call.agent, call.ended_at - call.started_at) for call in calls)


def by_tool(events: Iterable[Event]) -> list[Share]:
    """Time in runs of each tool, the most first."""
    return _shares(
        (event.name, event.ended_at - event.started_at) for event in events if isinstance(event, ToolEvent)
    )


def bottleneck(
    metrics: Sequence[Metrics],
    rollouts: Iterable[Rollout] = (),
    calls: Iterable[Call] = (),
    events: Iterable[Event] = (),
    machine: Mapping[str, Any] = MappingProxyType({}),
) -> list[Bottleneck]:
    """Returns the parts with at least a fifth of the steps' time, the largest first. Give the calls and
    events of some steps, with their rollouts: from them it names the slowest agent and tool. `machine` is the
    trainer's, as its run recorded it."""
    whole = step_seconds(metrics)
    tools, agents = by_tool(events), by_agent(calls)
    full = _are_cores_full(metrics, machine, tools, agents)
    at_once = "raise `concurrency`, add workers, or let rollouts go on during updates (staleness=1)"
    advice: Mapping[str, str] = {
        "collecting": _FULL if full else at_once,
        "updating": _FULL
        if full
        else "let rollouts go on during updates (staleness=1), or use LoRA or a larger machine",
        "publishing": "use LoRA, whose weights are small, or fewer and larger steps",
        "other": "save checkpoints less often (`checkpoint_every`), and see whether the store is far away",
    }
    found = [
        Bottleneck(
            part.name,
            f"{part.name} takes {part.share:.0%} of the steps ({part.seconds / len(metrics):.1f} s each)",
            advice[part.name],
            part.seconds,
            part.share,
        )
        for part in parts(metrics)
    ]
    late = straggling(rollouts)
    if late.whole:
        share = late.seconds / late.whole
        found.append(
            Bottleneck(
                "waiting",
                f"{share:.0%} of collecting is spent waiting for the last tenth of the rollouts",
                f"see why {late.slowest[-1]} took so long; give a `timeout`, or staleness=1",
                late.seconds,
                share,
            )
        )
    spent = sum(one.seconds for one in (*tools, *agents))
    less = _SHORTER if full else _LESS
    for about, shares, what in (("tool", tools, "cache or shorten it"), ("agent", agents, less)):
        for one in shares[:1] if spent else ():
            found.append(
                Bottleneck(
                    f"{about} {one.name}",
                    f"{about} {one.name!r} takes {one.seconds / spent:.0%} of the time in calls and tools: "
                    f"{one.count} times, {one.seconds / one.count:.2f} s each, at most {one.longest:.2f} s",
                    what,
                    one.seconds,
                    one.seconds / spent,
                )
            )
    large = [one for one in found if one.share >= LARGE] if whole else []
    return sorted(large, key=lambda one: -one.share)


def _are_cores_full(
    metrics: Sequence[Metrics], machine: Mapping[str, Any], tools: Sequence[Share], agents: Sequence[Share]
) -> bool:
    """Whether more at once can't be faster, on a machine without an accelerator. Where the share of the cores
    was not recorded, it is so if calls take longer than tools."""
    cores = machine.get("cores")
    if not isinstance(cores, int) or machine.get("accelerators"):
        return False
    share = cores_share(metrics, cores)
    if share is not None:
        return share >= FULL
    return sum(one.seconds for one in agents) > sum(one.seconds for one in tools)


_LESS: Final = "shorten its prompt or bound its reply (`max_tokens`)"
_SHORTER: Final = "shorten its prompt or its replies"
_FULL: Final = (
    "the processor is busy, so more at once is not faster: shorten prompts and replies, use LoRA, or take a "
    "smaller model or a larger machine"
)


def _sum(metrics: Iterable[Metrics], name: str) -> float:
    return sum(each.values.get(name, 0.0) for each in metrics)


def _shares(taken: Iterable[tuple[str, float]]) -> list[Share]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in taken:
        found[name].append(seconds)
    key: Callable[[Share], tuple[float, str]] = lambda one: (-one.seconds, one.name)  # noqa: E731
    return sorted((Share(n, len(some), sum(some), max(some)) for n, some in found.items()), key=key)
