"""What a tracker is: TensorBoard, W&B, MLflow, or one of your own.

The store has everything already. A tracker is a copy of it for people who look elsewhere, so nothing waits
for one, and one that fails stops nothing (`feed.py`). Its methods are called in one thread of its own, in
turn.

The step of a tracker is the number of updates made: the numbers of the first update stand at 1, and the
evaluation before it at 0.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lightning_core.errors import UnsupportedError
from lightning_core.types import Alert, Run


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a tracker is told first."""

    run: Run
    """With where its numbers come from in `provenance`."""
    resumed: bool = False
    """Whether it goes on. Steps and evaluations after the checkpoint that it goes on from are told again: a
    run that was killed may have ended before they were told."""


class Tracker(Protocol):
    """Takes the numbers of one run."""

    def start(self, beginning: Beginning) -> None:
        """The run begins, or goes on. Called once, before all else."""

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        """Numbers after so many updates, measured at that time in Unix seconds."""

    def alert(self, alert: Alert) -> None:
        """Something about the run that a person should look at."""

    def finish(self, status: str) -> None:
        """The run has "finished", "stopped" or "failed". What was told must be written when this returns."""


def check_installed(tracker: str, module: str, package: str) -> None:
    """Raise UnsupportedError, with what to install, for a tracker whose library is not there."""
    if importlib.util.find_spec(module) is None:
        raise UnsupportedError(f"tracker {tracker!r} needs the package {package!r}: pip install {package}")
