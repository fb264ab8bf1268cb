"""What a step took: wall time, how much of it the backend was at work, and this process's processor time.

The wall time in which the backend was not at work went to the app, and to recording, credit and the store.
"""

from __future__ import annotations

import time

from lightning_core.backends.base import Backend, Timed


class Stopwatch:
    """Started anew at the end of each step and of each evaluation."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._began = self._read()

    def read(self) -> dict[str, float]:
        """Since the start: `step_seconds`, `process_seconds` of processor time of all threads of this process
        and, of a backend that says so, `backend_seconds`."""
        now = self._read()
        return {name: value - self._began[name] for name, value in now.items()}

    def _read(self) -> dict[str, float]:
        read = {"step_seconds": time.perf_counter(), "process_seconds": time.process_time()}
        if isinstance(self._backend, Timed):
            read["backend_seconds"] = self._backend.busy_seconds
        return read
