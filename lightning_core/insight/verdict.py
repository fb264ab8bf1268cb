"""The verdict on a run: one sentence with its numbers, a pure function of the run's records.

Held-out tasks are compared in pairs, before and after, as the policy answers them without chance (greedy).
Without them, or with fewer than three, the first steps' rewards are compared with the last steps'. The
interval is Student's: of the mean difference of pairs, with two more for what few pairs don't show, or
Welch's of two means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, variance
from typing import Literal

from pydantic import Field

from lightning_core.alerts.rules import NOTHING_EARNED, RewardCollapse
from lightning_core.alerts.watch import Scene
from lightning_core.experience.returns import reward_of
from lightning_core.insight.failures import group_failures
from lightning_core.insight.rewards import LEAST, end_width
from lightning_core.records.types import Metrics, Record, Rollout, RolloutCount, Status, matches

Kind = Literal[
    "failed",
    "never_called",
    "refused",
    "never_earned",
    "all_equal",
    "collapsed",
    "improved",
    "worse",
    "flat",
    "untold",
    "noisy",
]
MOSTLY = 0.5
"""Share of rollouts that failed, or made no call, from which on that is the verdict."""
_GAIN = "search/gain"
"""How the metrics of a search's gain begin."""


class Verdict(Record):
    """The result of a run."""

    kind: Kind
    sentence: str
    also: tuple[str, ...] = ()
    """Further remarks for a person, such as fewer failures than would be the verdict."""
    numbers: dict[str, float] = Field(default_factory=dict)
    """Numbers in the sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The records that a verdict is made of."""

    metrics: Sequence[Metrics] = ()
    counts: Sequence[RolloutCount] = ()
    failed: Sequence[Rollout] = ()
    before: Sequence[Rollout] = ()
    """The held-out rollouts before the first update."""
    after: Sequence[Rollout] = ()
    """Rollouts of the newest evaluation after an update."""
    own: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Rewards of single agents in these evaluations, by rollout id and agent."""
    agents: Sequence[str] = ()
    """Names or globs of the agents to train; none: all."""
    temperature: float = 1.0
    """At which training rollouts are sampled."""


@dataclass(frozen=True, slots=True)
class _Finding:
    kind: Kind
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def verdict(evidence: Evidence) -> Verdict:
    """The gravest finding as the verdict; the others are said beside it."""
    first, *others = _findings(evidence)
    also = tuple(other.sentence for other in others if other.kind != "untold")
    return Verdict(kind=first.kind, sentence=first.sentence, also=also, numbers=dict(first.numbers))


def _findings(evidence: Evidence) -> Iterator[_Finding]:
    failures = list(_failures(evidence))
    mostly = [each for each in failures if each.numbers["share"] >= MOSTLY]
    yield from mostly
    yield from _never_called(evidence)
    yield from _without_calls(evidence)
    yield from _refused(evidence)
    equal = list(_equal_rewards(evidence))
    yield from equal
    yield from _collapsed(evidence)
    if not equal:
        yield _change(evidence)
        yield from _by_agent(evidence)
    yield from () if mostly else failures
    yield from _noisy(evidence)


# what went wrong ------------------------------------------------------------------------------
def _failures(evidence: Evidence) -> Iterator[_Finding]:
    ended = _count(evidence, Status.SUCCEEDED, Status.FAILED)
    failed = _count(evidence, Status.FAILED)
    if reasons := group_failures(evidence.failed):
        top = reasons[0]
        which = "" if top.count == failed else f"{top.count} of them with "
        yield _Finding(
            "failed",
            f"{failed} of {ended} rollouts failed: {which}{top.text}",
            {"failed": failed, "rollouts": ended, "share": failed / max(1, ended), "top": top.count},
        )


def _never_called(evidence: Evidence) -> Iterator[_Finding]:
    seen = seen_agents(evidence.metrics)
    for pattern in missing_agents(evidence.agents, seen) if seen else ():
        rollouts = int(sum(each.values.get("rollouts", 0.0) for each in evidence.metrics))
        yield _Finding(
            "never_called",
            f"Agent {pattern!r} never called a model in {rollouts} rollouts, so it learnt nothing; "
            f"agents that did: {', '.join(map(repr, seen))}",
            {"rollouts": rollouts},
        )


def _without_calls(evidence: Evidence) -> Iterator[_Finding]:
    """Rollouts that got their replies from elsewhere, such as a cache."""
    silent, rollouts = (
        int(sum(each.values.get(name, 0.0) for each in evidence.metrics))
        for name in ("rollouts_without_calls", "rollouts")
    )
    if silent and silent >= MOSTLY * rollouts:
        yield _Finding(
            "never_called",
            f"{silent} of {rollouts} rollouts ended without a call of a model, so they taught nothing: does "
            "the app keep replies in a cache of its own, or call its model past the gateway?",
            {"silent": silent, "rollouts": rollouts},
        )


def _refused(evidence: Evidence) -> Iterator[_Finding]:
    """Agents that are trained and got no reply at all: an app that catches the error hides it."""
    for name in seen_agents(evidence.metrics):
        calls, failed = (
            int(sum(each.values.get(f"agent/{name}/{what}", 0.0) for each in evidence.metrics))
            for what in ("calls", "failed_calls")
        )
        if failed and failed == calls and matches(name, evidence.agents or None):
            yield _Finding(
                "refused",
                f"Agent {name!r} got an error for each of its {calls} calls, so it learnt nothing",
                {"calls": calls},
            )


def seen_agents(metrics: Sequence[Metrics]) -> list[str]:
    """The agents that made calls in training."""
    called = {name for each in metrics for name, value in each.values.items() if value and _is_calls(name)}
    return sorted(name.removeprefix("agent/").removesuffix("/calls") for name in called)


def missing_agents(patterns: Sequence[str], seen: Sequence[str]) -> list[str]:
    """The names and globs that none of the agents seen matches."""
    return [each for each in patterns if not any(matches(name, (each,)) for name in seen)]


def _is_calls(name: str) -> bool:
    return name.startswith("agent/") and name.endswith("/calls")


def _equal_rewards(evidence: Evidence) -> Iterator[_Finding]:
    held_out = [reward_of(rollout) for rollout in (*evidence.before, *evidence.after)]
    low = [each.values["reward_min"] for each in evidence.metrics if "reward_min" in each.values]
    high = [each.values["reward_max"] for each in evidence.metrics if "reward_max" in each.values]
    if not low or min(*low, *held_out, low[0]) != max(*high, *held_out, high[0]):
        return
    rollouts, reward = _count(evidence, Status.SUCCEEDED), low[0]
    if reward == 0:
        yield _Finding(
            "never_earned",
            f"None of {rollouts} rollouts earned anything: {NOTHING_EARNED}",
            {"rollouts": rollouts, "reward": reward},
        )
    else:
        yield _Finding(
            "all_equal",
            f"All {rollouts} rollouts got the same reward, {say(reward)}, so there was nothing to learn; "
            "give harder tasks or a finer reward",
            {"rollouts": rollouts, "reward": reward},
        )


def _collapsed(evidence: Evidence) -> Iterator[_Finding]:
    for finding in RewardCollapse()(Scene(history=evidence.metrics)):
        yield _Finding("collapsed", f"Collapsed: {finding.message}")


def _noisy(evidence: Evidence) -> Iterator[_Finding]:
    """Replies sampled at temperature 1 that earn less than greedy ones, in a run that samples so."""
    greedy, sampled = _rewards(evidence.before, 0.0), _rewards(evidence.before, 1.0)
    pairs = [(sampled[key], greedy[key]) for key in sampled.keys() & greedy.keys()]
    if len(pairs) < LEAST or evidence.temperature < 1:
        return
    low, _ = mean_interval([best - drawn for drawn, best in pairs])
    drawn, best = (fmean(side) for side in zip(*pairs, strict=True))
    if low > 0:
        yield _Finding(
            "noisy",
            f"Before training, replies sampled at temperature 1 earned {say(drawn)}, and greedy ones "
            f"{say(best)}: training rollouts may earn more with temperature=0.6",
            {"sampled": drawn, "greedy": best},
        )


def _count(evidence: Evidence, *statuses: Status) -> int:
    return sum(each.count for each in evidence.counts if each.status in statuses)


# what was learnt ------------------------------------------------------------------------------
def _change(evidence: Evidence) -> _Finding:
    pairs = len(_rewards(evidence.before).keys() & _rewards(evidence.after).keys())
    return (
        _searched(evidence)
        or _held_out_change(evidence)
        or _training_change(evidence, pairs)
        or _untold(evidence)
    )


def _searched(evidence: Evidence) -> _Finding | None:
    """Returns the result of the last search that found better prompts, in a run that trained nothing."""
    searches = [each.values for each in evidence.metrics if f"{_GAIN}/low" in each.values]
    if not searches or len(searches) < len(evidence.metrics):
        return None
    last = next((each for each in reversed(searches) if each[f"{_GAIN}/low"] > 0), searches[-1])
    old, new = last["search/reporting/seed"], last["search/reporting/chosen"]
    low, high = last[f"{_GAIN}/low"], last[f"{_GAIN}/high"]
    better = low > 0
    return _Finding(
        "improved" if better else "flat",
        f"{'Improved: the prompts are better' if better else 'No better prompts'} than the seed: reward "
        f"{say(old)} with the seed, {say(new)} with those chosen, {new - old:+.3g} (95 % interval "
        f"{low:+.2g} to {high:+.2g}; tasks that no search has seen)",
        {"before": old, "after": new, "low": low, "high": high},
    )


def _by_agent(evidence: Evidence) -> Iterator[_Finding]:
    """The change of each of several trained agents, unless they all earned the same."""
    agents = [name for name in seen_agents(evidence.metrics) if _total(evidence, f"agent/{name}/trained")]
    told = {}
    for name in agents if len(agents) > 1 else ():
        untaught = f"agent/{name}/transitions"
        if any(untaught in each.values for each in evidence.metrics) and not _total(evidence, untaught):
            yield _Finding("flat", f"Agent {name!r} learnt nothing: none of its calls got an advantage")
        elif found := _agent_change(evidence, name):
            told[name] = found
    if len({tuple(found.numbers.values()) for found in told.values()}) > 1 or len(told) < len(agents):
        yield from told.values()


def _agent_change(evidence: Evidence, name: str) -> _Finding | None:
    """The change of an agent's own held-out rewards, where the app gives it some; else of those of
    training."""
    named = any(name in given for given in evidence.own.values())

    def of(rollout: Rollout) -> float | None:
        if rollout.status is not Status.SUCCEEDED:
            return reward_of(rollout)
        return evidence.own.get(rollout.id, {}).get(name)

    found = _held_out_change(evidence, of) if named else None
    found = found or _training_change(evidence, metric=f"agent/{name}/reward")
    if found is None:
        return None
    said = found.sentence.partition("; more steps")[0]
    return replace(found, sentence=f"Agent {name!r}: {said[0].lower()}{said[1:]}")


def _total(evidence: Evidence, metric: str) -> float:
    return sum(each.values.get(metric, 0.0) for each in evidence.metrics)


def _held_out_change(
    evidence: Evidence, of: Callable[[Rollout], float | None] = reward_of
) -> _Finding | None:
    before, after = _rewards(evidence.before, of=of), _rewards(evidence.after, of=of)
    pairs = [(before[key], after[key]) for key in before.keys() & after.keys()]
    if len(pairs) < LEAST:
        return None
    old, new = (fmean(side) for side in zip(*pairs, strict=True))
    low, high = mean_interval([last - first for first, last in pairs])
    return _told("held-out reward", old, new, low, high, f"{len(pairs)} tasks, greedy", len(pairs))


def _training_change(evidence: Evidence, pairs: int = 0, metric: str = "reward") -> _Finding | None:
    """`pairs`: the held-out tasks that were evaluated before and after, too few to tell."""
    rewards = [each.values[metric] for each in evidence.metrics if metric in each.values]
    if len(rewards) < 2 * LEAST:
        return None
    steps = end_width(len(rewards))
    first, last = rewards[:steps], rewards[-steps:]
    low, high = difference_interval(first, last)
    basis = f"first and last {steps} steps"
    if metric == "reward":
        basis += f", {_too_few(evidence, pairs)} to compare"
    return _told("training reward", fmean(first), fmean(last), low, high, basis, steps)


def _too_few(evidence: Evidence, pairs: int) -> str:
    if pairs:
        return f"{pairs} held-out task{'s' * (pairs != 1)}: too few"
    return "no later evaluation" if evidence.before else "no held-out tasks"


def _told(what: str, old: float, new: float, low: float, high: float, basis: str, number: int) -> _Finding:
    kind: Kind = "improved" if low > 0 else "worse" if high < 0 else "flat"
    start = {"improved": "Improved", "worse": "Got worse", "flat": "No clear change"}[kind]
    more = "; more steps or more held-out tasks may show a difference" if kind == "flat" else ""
    return _Finding(
        kind,
        f"{start}: {what} {say(old)} before, {say(new)} after, {new - old:+.3g} "
        f"(95 % interval {low:+.2g} to {high:+.2g}; {basis}){more}",
        {"before": old, "after": new, "low": low, "high": high, "compared": number},
    )


def _untold(evidence: Evidence) -> _Finding:
    rewards = list(_rewards(evidence.before).values())
    steps, tasks = len(evidence.metrics), len(rewards)
    if rewards and not steps:
        return _Finding(
            "untold",
            f"No update: held-out reward {say(fmean(rewards))} (greedy, {tasks} tasks)",
            {"steps": 0, "tasks": tasks, "before": fmean(rewards)},
        )
    return _Finding(
        "untold",
        f"Too little to tell: {steps} step{'s' * (steps != 1)} and {tasks} held-out "
        f"task{'s' * (tasks != 1)}; a verdict needs {2 * LEAST} steps with rewards, or {LEAST} held-out "
        "tasks before and after",
        {"steps": steps, "tasks": tasks},
    )


def _rewards(
    rollouts: Sequence[Rollout],
    temperature: float = 0.0,
    of: Callable[[Rollout], float | None] = reward_of,
) -> dict[tuple[str, int], float]:
    """The reward of each task at a temperature, by its id and, of tasks given several times, its turn. A
    rollout of which `of` gives none is left out."""
    turns: Counter[str] = Counter()
    rewards = {}
    for rollout in rollouts:
        if rollout.sampling.temperature == temperature:
            if (reward := of(rollout)) is not None:
                rewards[rollout.task.id, turns[rollout.task.id]] = reward
            turns[rollout.task.id] += 1
    return rewards


def say(value: float) -> str:
    """A number for a person: three decimals at most, two digits of a small one, none of a whole one."""
    if value and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.3f}".rstrip("0").rstrip(".")


# intervals ------------------------------------------------------------------------------------
def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean of differences: mean ± t(n - 1) s / sqrt(n), with two more values.

    These are +r and -r, where r is the largest difference, or 1 if there is none.
    They stand for what a few pairs have not shown yet (Agresti and Caffo, 2000): without them pairs that
    all changed alike have an interval without width. With rewards of 0 and 1 it holds the true difference in
    95 % of runs, for 3 to 80 pairs.
    """
    most = max(map(abs, values)) or 1.0
    shown = [*values, most, -most]
    mean, wide = fmean(shown), student(len(shown) - 1) * math.sqrt(variance(shown) / len(shown))
    return mean - wide, mean + wide


def level_interval(values: Sequence[float], least: float, most: float) -> tuple[float, float]:
    """Student's interval of a mean, with four more values, within `least` and `most`, the ends of the scale.

    The four are two of each end. With rewards of 0 and 1 that is the interval of a share of Agresti and Coull
    (1998), which holds for few tasks too, and has a width where all are alike.
    """
    shown = [*values, least, least, most, most]
    mean, wide = fmean(shown), student(len(shown) - 1) * math.sqrt(variance(shown) / len(shown))
    return max(least, mean - wide), min(most, mean + wide)


def difference_interval(first: Sequence[float], last: Sequence[float]) -> tuple[float, float]:
    """Welch's interval of mean(last) - mean(first) ("The generalization of Student's problem", 1947)."""
    parts = [variance(side) / len(side) for side in (first, last)]
    squares = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, last), strict=True))
    difference = fmean(last) - fmean(first)
    wide = student(sum(parts) ** 2 / squares) * math.sqrt(sum(parts)) if squares else 0.0
    return difference - wide, difference + wide


def student(freedom: float) -> float:
    """The quantile of Student's t for a two-sided interval of 95 %: Abramowitz & Stegun, 26.7.5.

    Within 0.8 % for two degrees of freedom, 0.03 % from four on.
    """
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
