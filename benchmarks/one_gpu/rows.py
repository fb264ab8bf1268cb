"""Rows of a part's table, written as they come."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Missing(Exception):
    """A part needs what is not installed; the text names it."""


class Rows:
    """A part's table, in a file of its own."""

    def __init__(self, path: Path, *, profile: bool = False) -> None:
        self._path, self._profile = path, profile
        self._found: dict[str, Any] = {"title": path.stem, "rows": []}
        self.failed = False

    def title(self, text: str) -> None:
        self._found["title"] = text

    def facts(self, **facts: Any) -> None:
        self._found["facts"] = facts
        self._write()

    @contextmanager
    def row(self, **named: Any) -> Iterator[dict[str, Any]]:
        """A row to be filled; what is raised becomes its `error`, and the next row goes on."""
        row = dict(named)
        try:
            yield row
        except Missing:
            raise
        except Exception as error:  # boundary: a row fails, the others go on
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self.failed = True
        self._found["rows"].append(row)
        self._write()
        print(row, flush=True)

    @contextmanager
    def profiled(self, what: str) -> Iterator[None]:
        """List the kernels that took most time, where that was asked for."""
        if not (self._profile and torch.cuda.is_available()):
            yield
            return
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            yield
            torch.cuda.synchronize()
        events = profile.key_averages()
        table = events.table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=70)
        busy = events.table(sort_by="cpu_time_total", row_limit=25, max_name_column_width=70)
        name = "".join(c if c.isalnum() else "-" for c in what)
        (self._path.parent / f"profile-{name}.txt").write_text(f"{table}\n{busy}\n")

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._found, indent=1) + "\n")
