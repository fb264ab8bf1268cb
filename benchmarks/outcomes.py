"""What a run of a study came to, read from its records, and how a study is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.report import running_mean
from lightning_core.trainer.summary import Summary
from lightning_core.types import Record

if TYPE_CHECKING:
    from benchmarks.studies import Study


class Outcome(Record):
    """One run."""

    seed: int
    rewards: list[float]
    """Mean training reward of each step."""
    rollouts: list[int]
    """Rollouts made until the end of each step."""
    seconds: list[float]
    """Wall time until the end of each step, evaluations left out."""
    sampled: tuple[float, float]
    """Held-out success before and after, sampled."""
    greedy: tuple[float, float]
    measured: float | None = None


async def outcome_of(folder: Path, study: Study) -> Outcome:
    """Read a finished run."""
    summary = Summary.model_validate_json((folder / "summary.json").read_bytes())
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        metrics = await store.list_metrics(summary.run)
        measured = await study.measure(store, summary.run) if study.measure is not None else None
    if summary.before is None or summary.after is None:
        raise ValueError(f"run {summary.run!r} in {str(folder)!r} has no evaluation before and after")
    rewarded = [entry.values for entry in metrics if "reward" in entry.values]
    return Outcome(
        seed=summary.seed,
        rewards=[values["reward"] for values in rewarded],
        rollouts=[int(n) for n in _sums([values["rollouts"] for values in rewarded])],
        seconds=_sums([values["step_seconds"] for values in rewarded]),
        sampled=(summary.before.sampled, summary.after.sampled),
        greedy=(summary.before.greedy, summary.after.greedy),
        measured=measured,
    )


def reached(outcome: Outcome, threshold: float) -> int | None:
    """The first step whose mean of five rewards is at the threshold; None if there is none."""
    means = running_mean(outcome.rewards)
    return next((step for step, mean in enumerate(means) if step >= 4 and mean >= threshold), None)


def rollouts_to(outcome: Outcome, threshold: float) -> float:
    """Rollouts made until the threshold; infinite if it was not reached."""
    step = reached(outcome, threshold)
    return math.inf if step is None else outcome.rollouts[step]


def seconds_to(outcome: Outcome, threshold: float) -> float:
    """Wall time until the threshold; infinite if it was not reached."""
    step = reached(outcome, threshold)
    return math.inf if step is None else outcome.seconds[step]


def study_table(study: Study, outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """One line for each variant: mean and 95 % interval over the seeds."""
    head = ["", "seeds", "sampled before", "after", "greedy before", "after"]
    head += [f"rollouts to {study.threshold:g}", f"seconds to {study.threshold:g}", "training"]
    head += [study.measured] if study.measure is not None else []
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, runs in outcomes.items():
        cells = [name, str(len(runs))]
        for kind in ("sampled", "greedy"):
            pairs: list[tuple[float, float]] = [getattr(run, kind) for run in runs]
            cells += [interval([pair[when] for pair in pairs]) for when in (0, 1)]
        cells.append(middle([rollouts_to(run, study.threshold) for run in runs]))
        cells.append(middle([seconds_to(run, study.threshold) for run in runs], unit=" s"))
        cells.append(f"{fmean(run.seconds[-1] for run in runs if run.seconds):.0f} s")
        if study.measure is not None:
            cells.append(interval([run.measured for run in runs if run.measured is not None]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(values: Sequence[float], digits: int = 3) -> str:
    """Mean and the half width of its 95 % interval (Student's t over runs)."""
    if len(values) < 2:
        return f"{fmean(values):.{digits}f}" if values else "–"
    half = _T95[min(len(values) - 1, len(_T95) - 1)] * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.{digits}f} ± {half:.{digits}f}"


def middle(values: Sequence[float], unit: str = "") -> str:
    """Median and range; says how many never got there."""
    never = sum(math.isinf(value) for value in values)
    m = median(values)
    shown = "not reached" if math.isinf(m) else f"{m:.0f}{unit}"
    low = min(values)
    high = max((value for value in values if not math.isinf(value)), default=math.inf)
    if len(values) > 1 and not math.isinf(low):
        shown += f" ({low:.0f} to {'never' if never else f'{high:.0f}'})"
    return shown


def plot_outcomes(study: Study, outcomes: Mapping[str, Sequence[Outcome]], path: Path) -> None:
    """Training reward over rollouts: the mean over seeds of the mean of five steps, and its range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, runs in outcomes.items():
        steps = min((len(run.rewards) for run in runs), default=0)
        if not steps:
            continue
        curves = [running_mean(run.rewards)[:steps] for run in runs]
        rollouts = [fmean(run.rollouts[step] for run in runs) for step in range(steps)]
        (line,) = axes.plot(rollouts, [fmean(column) for column in zip(*curves, strict=True)], label=name)
        axes.fill_between(
            rollouts, [*map(min, zip(*curves, strict=True))], [*map(max, zip(*curves, strict=True))],
            alpha=0.15, color=line.get_color(), linewidth=0,
        )  # fmt: skip
    axes.axhline(study.threshold, color="0.7", linestyle=":")
    axes.set(xlabel="rollouts", ylabel="training reward, mean of five steps", title=study.title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def _sums(values: Sequence[float]) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value
        sums.append(total)
    return sums


_T95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Two-sided 95 % points of Student's t, by degrees of freedom; the last serves for more."""
