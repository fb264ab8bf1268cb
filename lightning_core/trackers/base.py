"""The tracker's contract: TensorBoard, W&B, MLflow, or one of your own.

The store has everything already. A tracker is a copy of it for people who look elsewhere, so nothing waits
for one, and one that fails stops nothing. Its methods are called in one thread of its own, in turn (`Feed`).

The step of a tracker is the number of updates made: the numbers of the first update stand at 1, and the
evaluation before it at 0.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from lightning_core.errors import UnsupportedError
from lightning_core.records.types import Alert, Run

log = logging.getLogger(__name__)

LAST_SECONDS = 60.0
"""Seconds that the end of a run waits for pending writes."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A tracker's first message about a run."""

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


class Feed:
    """Hands what it is told to one tracker, in turn."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self._tracker = tracker
        self._told: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self._complained = False
        self._thread = threading.Thread(target=self._work, name=f"lightning-tracker-{name}", daemon=True)

    def start(self, beginning: Beginning) -> None:
        """Begin to hand over."""
        self._told.put(("start", (beginning,)))
        self._thread.start()

    def tell(self, method: str, *arguments: Any) -> None:
        """Have a method of the tracker called, soon; `finish` is the last."""
        self._told.put((method, arguments))

    def join(self, timeout: float = LAST_SECONDS) -> None:
        """Wait until it has taken everything, `finish` included; a tracker that hangs is left behind."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("tracker %r still writes after %g s and is not waited for", self.name, timeout)

    def _work(self) -> None:
        started, method = False, ""
        while method != "finish":
            method, arguments = self._told.get()
            if started or method == "start":
                done = self._call(method, arguments)
                started = started or done

    def _call(self, method: str, arguments: tuple[Any, ...]) -> bool:
        try:
            getattr(self._tracker, method)(*arguments)
        except Exception as error:  # any library, any network: the run does not depend on it
            if not self._complained:
                self._complained = True
                said = "tracker %r failed at %r, said once; the run goes on and its store has everything: %r"
                log.warning(said, self.name, method, error)
            return False
        return True
