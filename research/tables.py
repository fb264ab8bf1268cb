"""The tables of results, as Markdown. ± and "low to high" mean the same in all of them, and each says it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Literal, Protocol

from benchmarks.intervals import mean_of, ratio_of
from lightning_core.trainer.summary import Evaluation, EvaluationScore, Summary
from research.design import Design
from research.outcomes import Outcome

MEANING = (
    "± is the standard deviation over the runs; “a to b” is the 95 % interval of their mean, by Student's t."
)
"""Under every table with either."""
Runs = Mapping[str, Outcome]
"""The runs of one variant, by name."""


class OwnTable(Protocol):
    """Shows an example's own figures."""

    def table(self, measured: Sequence[Mapping[str, dict[str, float]]]) -> str:
        """The table of all runs' figures, as Markdown."""


def study_table(study: Design, variants: Mapping[str, Runs]) -> str:
    """One line for each variant, and what its columns mean."""
    head = ["", "sampled before → after", "greedy before → after", f"reached {study.threshold:g}"]
    head += ["rollouts", "seconds", "training"]
    head += [study.measured] if study.measure is not None else []
    head += ["ratio of these" if study.compared == "measured" else f"ratio of {study.compared}"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    base = variants.get(study.variants[0].name)
    for name, named in variants.items():
        runs = list(named.values())
        there = sum(run.reached(study.threshold) is not None for run in runs)
        cells = [name, change(runs, "sampled"), change(runs, "greedy"), f"{there} of {len(runs)}"]
        cells += [middle(to_threshold(study, runs, what)) for what in ("rollouts", "seconds")]
        cells.append(f"{spread([run.summary.train_seconds for run in runs], digits=0)} s")
        if study.measure is not None:
            cells.append(interval([run.measured for run in runs if run.measured is not None]))
        cells.append("1" if named is base else ratio(study, runs, list(base.values()) if base else []))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", legend(study)])


def worst_table(variants: Mapping[str, Runs]) -> str:
    """The worst run of each variant, and what its runs have not learnt."""
    lines = [
        "| | worst run, sampled | worst run, greedy | kinds below one half, greedy, and in how many runs |",
        "|---|---|---|---|",
    ]
    for name, runs in variants.items():
        worst = [min(run.success(kind)[1] for run in runs.values()) for kind in ("sampled", "greedy")]
        missed = Counter(
            part
            for run in runs.values()
            if (after := run.summary.after) is not None
            for part, success in after.detail["greedy"].by.items()
            if success < 0.5
        )
        told = ", ".join(f"{part} {count}" for part, count in sorted(missed.items())) or "–"
        lines.append(f"| {name} | {worst[0]:.3f} | {worst[1]:.3f} | {told} |")
    return "\n".join(lines)


def legend(study: Design) -> str:
    """Returns the text under a study's table."""
    kind, late = "of the means", ""
    if study.compared != "measured":
        kind = f"of the medians of {study.compared}"
        late = "; a run that did not get there counts with all that it had"
    return (
        f"Held-out success is the mean over the runs, in brackets the interval after training. {MEANING} "
        "Rollouts and seconds are medians until the mean training reward of five steps is "
        f"{study.threshold:g}. The ratio is {kind} to the first line's, with its 95 % interval by bootstrap "
        f"of the seeds{late}."
    )


def change(runs: Sequence[Outcome], kind: Literal["sampled", "greedy"]) -> str:
    """Held-out success before and after, and the interval after."""
    pairs = [run.success(kind) for run in runs]
    return f"{fmean(before for before, _ in pairs):.3f} → {interval([after for _, after in pairs])}"


def to_threshold(study: Design, runs: Sequence[Outcome], what: Literal["rollouts", "seconds"]) -> list[float]:
    """For each run; infinite where the threshold was not reached."""
    if what == "rollouts":
        return [run.rollouts_to(study.threshold) for run in runs]
    return [run.seconds_to(study.threshold) for run in runs]


def middle(values: Sequence[float]) -> str:
    """The median; "–" if half of the runs did not get there."""
    m = median(values)
    return "–" if math.isinf(m) else f"{m:,.0f}"


def ratio(study: Design, runs: Sequence[Outcome], base: Sequence[Outcome]) -> str:
    """Returns the ratio of the study's number to the base's; "–" where half of the base has nothing to
    compare with."""
    values, of_base = (_compared(study, each) for each in (runs, base))
    if len(values) != len(of_base) or min(of_base, default=0) <= 0 or not _most_arrived(study, base):
        return "–"
    found = ratio_of(values, of_base, fmean if study.compared == "measured" else median)
    least = "" if _most_arrived(study, runs) else "≥ "
    bounds = f" ({found.low:.2f} to {found.high:.2f})" if len(values) > 1 else ""
    return f"{least}{found.value:.2f}{bounds}"


def _most_arrived(study: Design, runs: Sequence[Outcome]) -> bool:
    return study.compared == "measured" or math.isfinite(median(to_threshold(study, runs, study.compared)))


def _compared(study: Design, runs: Sequence[Outcome]) -> list[float]:
    if study.compared == "measured":
        return [run.measured for run in runs if run.measured is not None]
    ends = [(run.rollouts if study.compared == "rollouts" else run.seconds)[-1:] for run in runs]
    found = to_threshold(study, runs, study.compared)
    return [min(value, *end) for value, end in zip(found, ends, strict=True) if end]


def example_tables(runs: Runs, parts: str, extra: OwnTable | None) -> str:
    """An example's runs one by one, by `parts`, by agent, and its own table."""
    outcomes, summaries = list(runs.values()), [run.summary for run in runs.values()]
    tables = [run_table("seed", runs)]
    if by_part := part_table(parts.split()[0], summaries):
        tables += [f"By {parts}:", by_part]
    tables += ["By agent:", agent_table(summaries)]
    if extra is not None:
        tables.append(extra.table([run.extra for run in outcomes]))
    return "\n\n".join([*tables, MEANING])


def run_table(heading: str, runs: Runs) -> str:
    """One line for each run, then mean ± standard deviation, and the 95 % interval of the mean."""
    header = f"{heading} | sampled before | after | gain | greedy before | after | gain | training"
    lines = [f"| {header} |", "|---|---|---|---|---|---|---|---|"]
    rows = {
        name: [*_gains(run.success("sampled")), *_gains(run.success("greedy"))] for name, run in runs.items()
    }
    for name, cells in rows.items():
        shown = " | ".join(f"{value:.3f}" for value in cells)
        lines.append(f"| {name} | {shown} | {runs[name].summary.train_seconds:.0f} s |")
    columns = [list(column) for column in zip(*rows.values(), strict=True)]
    seconds = [run.summary.train_seconds for run in runs.values()]
    lines.append(f"| **mean ± sd** | {' | '.join(map(spread, columns))} | {spread(seconds, digits=0)} s |")
    if len(runs) > 1:
        bounds = [*map(between, columns), f"{between(seconds, digits=0)} s"]
        lines.append(f"| **95 % interval** | {' | '.join(bounds)} |")
    return "\n".join(lines)


def part_table(heading: str, summaries: Sequence[Summary]) -> str:
    """Success for each value of `group_by`, mean ± standard deviation over the runs; "" without one."""
    pairs = _evaluations(summaries)
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
    pairs = _evaluations(summaries)
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


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and sample standard deviation over runs; a dash where there is nothing."""
    if not values:
        return "–"
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {stdev(values):.{digits}f}" if len(values) > 1 else mean


def interval(values: Sequence[float], digits: int = 3) -> str:
    """Mean and its 95 % interval; a dash where there is nothing."""
    if not values:
        return "–"
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ({between(values, digits)})" if len(values) > 1 else mean


def between(values: Sequence[float], digits: int = 3) -> str:
    """The 95 % interval of the mean."""
    found = mean_of(values)
    return f"{found.low:.{digits}f} to {found.high:.{digits}f}"


def _gains(pair: tuple[float, float]) -> list[float]:
    """Before, after and their difference."""
    before, after = pair
    return [before, after, after - before]


def _evaluations(summaries: Iterable[Summary]) -> list[tuple[Evaluation, Evaluation]]:
    """Before and after of every run; a run without them is no `Outcome`."""
    return [(s.before, s.after) for s in summaries if s.before is not None and s.after is not None]


def _calls(score: EvaluationScore, agent: str) -> float:
    """Calls per task; an agent that never acted made none."""
    return score.agents[agent].calls / score.tasks if agent in score.agents else 0.0
