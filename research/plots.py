"""The plot of a study: training reward over rollouts or wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_core.insight.rewards import running_mean
from research.outcomes import WIDTH, Outcome

if TYPE_CHECKING:
    from research.studies import Study

POINTS = 200
"""Points of a curve: runs are not equally long from step to step, so they are read at places between."""
STYLES = ("-", "--", "-.", ":")
Curve = tuple[np.ndarray, np.ndarray]


def plot(study: Study, variants: Mapping[str, Mapping[str, Outcome]], path: Path) -> None:
    """A curve for each variant, the mean over its runs, in a band from the lowest run to the highest.

    Of a study of one variant, every run has a curve of its own.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, runs) in enumerate(lines(variants).items()):
        curves = [curve(run, study) for run in runs if run.rewards]
        if not curves:
            continue
        x = np.linspace(0, min(x[-1] for x, _ in curves), POINTS)
        y = np.stack([np.interp(x, *each, left=np.nan) for each in curves])
        style = STYLES[number % len(STYLES)]
        axes.plot(x, y.mean(0), style, color=f"C{number}", label=name)
        axes.fill_between(x, y.min(0), y.max(0), alpha=0.12, color=f"C{number}", linewidth=0)
    if len(variants) > 1:
        axes.axhline(study.threshold, color="0.6", linewidth=0.8)
    where = "seconds of training" if study.compared == "seconds" else "rollouts"
    axes.set(
        xlabel=where, ylabel=f"training reward, mean of {WIDTH} steps", title=study.title, ylim=(0, 1.02)
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def lines(variants: Mapping[str, Mapping[str, Outcome]]) -> dict[str, Sequence[Outcome]]:
    """The runs of each curve."""
    if len(variants) == 1:
        return {name: [run] for runs in variants.values() for name, run in runs.items()}
    return {name: list(runs.values()) for name, runs in variants.items()}


def curve(run: Outcome, study: Study) -> Curve:
    """Where a run's steps ended, and the mean of five rewards there."""
    where = run.seconds if study.compared == "seconds" else run.rollouts
    return np.array(where, dtype=float), np.array(running_mean(run.rewards, WIDTH))
