"""How long something was at work: the seconds in which at least one of many overlapping spans was open.

Added up one by one, sixteen replies at once would count sixteen times, and a reply during an update twice.
"""

from __future__ import annotations

import threading
import time


class Meter:
    """`with meter:` around what is counted, from any thread and any task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """So far, with what is open now."""
        with self._lock:
            return self._before + (time.monotonic() - self._since if self._open else 0.0)

    def __enter__(self) -> None:
        with self._lock:
            if not self._open:
                self._since = time.monotonic()
            self._open += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._before += time.monotonic() - self._since
