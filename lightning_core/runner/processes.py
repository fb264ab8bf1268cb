"""`executor="processes"`: a warm pool of worker processes, one attempt in each at a time.

Here an endless loop, a crash of the interpreter or a leak is one rollout's matter. A process is started once
and runs attempt after attempt; one that was ended, or that died, is replaced at once. Processes are started
afresh (spawned), never forked: a fork would inherit the locks of threads that it does not have.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from lightning_core.errors import ConfigError
from lightning_core.runner.executor import Solve
from lightning_core.runner.member import Member
from lightning_core.runner.packing import pack
from lightning_core.runner.pool import Pool


@dataclass(frozen=True, slots=True)
class Processes:
    """Run in worker processes of this machine."""

    workers: int | None = None
    """Processes, and so rollouts at once; None: as many as the runner's `concurrency`. Each is an interpreter
    with the app loaded, and is started when it is first needed."""
    grace: float = 1.0
    """Seconds between SIGTERM and SIGKILL for what is to end."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"Processes(workers={self.workers!r}): must be 1 or more, or None")
        if not self.grace >= 0:
            raise ConfigError(f"Processes(grace={self.grace!r}): must be 0 seconds or more")

    def crew(self, solve: Solve, concurrency: int) -> Pool:
        """Raises ConfigError if the function can't be sent to another process."""
        if os.name != "posix":
            raise ConfigError('executor="processes" needs Linux or macOS; use executor="asyncio"')
        return Pool(partial(Member.start, pack(solve, "processes"), self.grace), self.workers or concurrency)
