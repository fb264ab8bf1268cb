"""A script in a process of its own, to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def begun(script: Path, said: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run it until the end of the block at most; its standard error is appended to the file `said`."""
    command = [sys.executable, "-W", "ignore", str(script), *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with said.open("a") as file:
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=file, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        with job:
            try:
                yield job
            finally:
                job.kill()
