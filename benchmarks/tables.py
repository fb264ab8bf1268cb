"""The tables that every example has, as Markdown, from the summaries of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from lightning_core.trainer.summary import Evaluation, Score, Summary

Pair = tuple[Evaluation, Evaluation]
"""A run's evaluations before and after training."""


def seed_table(heading: str, summaries: Mapping[str, Summary]) -> str:
    """One line for each run, then mean ± standard deviation over the runs."""
    header = f"{heading} | sampled before | after | gain | greedy before | after | gain | training"
    lines = [f"| {header} |", "|---|---|---|---|---|---|---|---|"]
    rows = {name: _gains(pair) for name, pair in zip(summaries, evaluations(summaries.values()), strict=True)}
    for name, cells in rows.items():
        shown = " | ".join(f"{value:.3f}" for value in cells)
        lines.append(f"| {name} | {shown} | {summaries[name].train_seconds:.0f} s |")
    columns = [list(column) for column in zip(*rows.values(), strict=True)]
    seconds = spread([summary.train_seconds for summary in summaries.values()], digits=0)
    lines.append(f"| **mean ± sd** | {' | '.join(map(spread, columns))} | {seconds} s |")
    return "\n".join(lines)


def part_table(heading: str, summaries: Sequence[Summary]) -> str:
    """Success for each value of the breakdown, mean ± standard deviation over the runs; "" without one."""
    pairs = evaluations(summaries)
    parts = sorted({name for before, _ in pairs for name in before.detail["sampled"].by})
    if not parts:
        return ""
    lines = [f"| {heading} | sampled before | after | greedy before | after |", "|---|---|---|---|---|"]
    for part in parts:
        cells = [
            spread([pair[when].detail[kind].by[part] for pair in pairs])
            for kind in ("sampled", "greedy")
            for when in (0, 1)
        ]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def agent_table(summaries: Sequence[Summary]) -> str:
    """For each agent: calls per rollout, and success of the rollouts in which it acted (sampled)."""
    pairs = evaluations(summaries)
    lines = [
        "| agent | trained | calls per task before | after | success where it acted before | after |",
        "|---|---|---|---|---|---|",
    ]
    for agent in sorted({agent for summary in summaries for agent in summary.agents}):
        scores = [[pair[when].detail["sampled"] for pair in pairs] for when in (0, 1)]
        calls = [spread([_calls(score, agent) for score in of_one]) for of_one in scores]
        success = [
            spread([score.agents[agent].success for score in of_one if agent in score.agents])
            for of_one in scores
        ]
        trained = "yes" if any(s.agents[agent].trained for s in summaries if agent in s.agents) else "no"
        lines.append(f"| {agent} | {trained} | {' | '.join(calls + success)} |")
    return "\n".join(lines)


def evaluations(summaries: Iterable[Summary]) -> list[Pair]:
    """Before and after of every run. Raises ValueError for a run that was not evaluated."""
    pairs = []
    for summary in summaries:
        if summary.before is None or summary.after is None:
            raise ValueError(f"run {summary.run!r} in {summary.folder!r} has no evaluation before and after")
        pairs.append((summary.before, summary.after))
    return pairs


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and sample standard deviation over runs; a dash where there is nothing."""
    if not values:
        return "–"
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {stdev(values):.{digits}f}" if len(values) > 1 else mean


def _gains(pair: Pair) -> list[float]:
    """Before, after and their difference: sampled, then greedy."""
    before, after = pair
    sampled = [before.sampled, after.sampled, after.sampled - before.sampled]
    return [*sampled, before.greedy, after.greedy, after.greedy - before.greedy]


def _calls(score: Score, agent: str) -> float:
    """Calls per task; an agent that never acted made none."""
    return score.agents[agent].calls / score.tasks if agent in score.agents else 0.0
