"""A thread between a run and a tracker: the run never waits for it, nor fails with it."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Any

from lightning_core.trackers.base import Beginning, Tracker

log = logging.getLogger(__name__)

LAST_SECONDS = 60.0
"""That the end of a run waits for what is still to be written."""


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
