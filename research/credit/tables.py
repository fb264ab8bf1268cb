"""The suite's results as Markdown: a table of ratios, and the details of each environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from benchmarks.intervals import Interval, mean_ratio_of, median_of, ratio_of
from research.credit.comparing import PUBLISHED, THRESHOLD, Comparison, Outcome

BASE = "uniform"
"""With whose gradient those of the others are compared."""


def rollouts_of(outcome: Outcome, comparison: Comparison) -> list[float]:
    """To the threshold; a run that did not get there counts with all that it had."""
    most = comparison.updates * comparison.batch
    return [float(most if rollouts is None else rollouts) for rollouts in outcome.rollouts]


def beside_base(name: str, comparison: Comparison) -> tuple[list[float], list[float]] | None:
    """The rollouts of a method and of "published"; None without it, or if they have not as many seeds."""
    base, outcome = comparison.outcomes.get(PUBLISHED), comparison.outcomes.get(name)
    if base is None or outcome is None or len(base.rollouts) != len(outcome.rollouts):
        return None
    return rollouts_of(outcome, comparison), rollouts_of(base, comparison)


def ratio_to_base(
    name: str, comparison: Comparison, of: Callable[[Iterable[float]], float] = fmean
) -> Interval | None:
    """Mean rollouts in ratio to those of "published"; None where they can't be compared."""
    pair = beside_base(name, comparison)
    return None if pair is None else ratio_of(*pair, of)


def is_learnable(comparison: Comparison) -> bool:
    """Whether any method reaches the threshold in most of its runs."""
    return any(
        2 * sum(rollouts is not None for rollouts in outcome.rollouts) > len(outcome.rollouts)
        for outcome in comparison.outcomes.values()
    )


def ratio_table(comparisons: dict[str, Comparison], methods: Sequence[str]) -> str:
    """A line for each environment, a column for each method, and under them the mean and the runs that never
    got there. Bold: at most 0.6; a cross: above 1.1."""
    shown = [method for method in methods if method != PUBLISHED]
    learnable = {name: each for name, each in comparisons.items() if is_learnable(each)}
    lines = [f"| environment | {' | '.join(shown)} |", f"|{'---|' * (len(shown) + 1)}"]
    for environment, comparison in comparisons.items():
        cells = [_ratio_cell(method, comparison) for method in shown]
        cells = cells if environment in learnable else ["not learnt"] * len(shown)
        lines.append(f"| {environment} | {' | '.join(cells)} |")
    means = [_mean_ratio(method, list(learnable.values())) for method in shown]
    lines.append(f"| mean of {len(learnable)} games that are learnt | {' | '.join(means)} |")
    lost = [f"{method} {_lost(method, list(learnable.values()))}" for method in methods]
    return "\n".join([*lines, "", f"Runs of these games that never got there: {', '.join(lost)}."])


def _mean_ratio(method: str, comparisons: Sequence[Comparison]) -> str:
    pairs = [pair for each in comparisons if (pair := beside_base(method, each)) is not None]
    alike = len({len(base) for _, base in pairs}) == 1
    return show(mean_ratio_of(pairs, fmean), 2) if alike else "–"


def _lost(method: str, comparisons: Sequence[Comparison]) -> str:
    runs = [
        rollouts
        for each in comparisons
        if method in each.outcomes
        for rollouts in each.outcomes[method].rollouts
    ]
    return f"{runs.count(None)} of {len(runs)}"


def cost_table(costs: dict[str, dict[str, Interval]]) -> str:
    """A line for each environment, a column for each method, and under them what is worst; low is good."""
    methods = sorted({method for found in costs.values() for method in found} - {BASE})
    lines = [
        f"Error of the gradient in ratio to `{BASE}` (`python -m research.credit.gradient`):",
        "",
        f"| environment | {' | '.join(methods)} |",
        f"|{'---|' * (len(methods) + 1)}",
    ]
    for environment, found in costs.items():
        cells = [show(found.get(method)) for method in methods]
        lines.append(f"| {environment} | {' | '.join(cells)} |")
    worst = [max(found[method].value for found in costs.values() if method in found) for method in methods]
    lines.append(f"| the worst | {' | '.join(f'{value:.2f}' for value in worst)} |")
    return "\n".join(lines)


def detail_table(comparison: Comparison, methods: Sequence[str]) -> str:
    """A line for each method in one environment."""
    head = [
        "method",
        "rate",
        f"rollouts to {THRESHOLD * comparison.optimum:.2f}",
        "reached",
        f"ratio to {PUBLISHED}: means",
        "medians",
        "final success",
    ]
    lines = [row(head), f"|{'---|' * len(head)}"]
    for name in methods:
        if (outcome := comparison.outcomes.get(name)) is None:
            continue
        rollouts = median_of(rollouts_of(outcome, comparison))
        ratios = [ratio_to_base(name, comparison, of) for of in (fmean, median)]
        there = sum(r is not None for r in outcome.rollouts)
        cells = [
            name,
            f"{outcome.rate:g}",
            show(rollouts, 0),
            f"{there} of {len(outcome.rollouts)}",
            *("1" if name == PUBLISHED and ratio else show(ratio) for ratio in ratios),
            show(median_of(outcome.final), 2),
        ]
        lines.append(row(cells))
    return "\n".join(lines)


def page_of(comparisons: dict[str, Comparison], methods: Sequence[str]) -> str:
    """Everything that stands between the marks."""
    parts = [f"Rollouts to the threshold in ratio to `{PUBLISHED}`: means over the seeds."]
    parts.append(ratio_table(comparisons, methods))
    for environment, comparison in comparisons.items():
        most = comparison.updates * comparison.batch
        about = f"success {comparison.start:.2f} before, {comparison.optimum:.2f} at best"
        parts.append(f"<details><summary>{environment}: {about}, {most:,} rollouts at most</summary>")
        parts += [detail_table(comparison, methods), "</details>"]
    return "\n\n".join(parts)


def _ratio_cell(method: str, comparison: Comparison) -> str:
    ratio = ratio_to_base(method, comparison)
    if ratio is None:
        return "–"
    number = f"{ratio.value:.2f}"
    return f"**{number}**" if ratio.value <= 0.6 else f"{number} ✗" if ratio.value > 1.1 else number


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def show(interval: Interval | None, digits: int = 2) -> str:
    """A value with its bounds; a dash where there is none."""
    if interval is None:
        return "–"
    low, high = f"{interval.low:,.{digits}f}", f"{interval.high:,.{digits}f}"
    return f"{interval.value:,.{digits}f} ({low} to {high})"
