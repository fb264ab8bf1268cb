"""Weights & Biases, through its own library.

The library sends in a process of its own, which ends with the run. What it would gather by itself (console
output, git diff, packages, machine) stays here: the run's provenance says it, without secrets.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

from lightning_core.records.types import Alert
from lightning_core.trackers.base import Beginning, check_installed

log = logging.getLogger(__name__)

LOGIN_SECONDS = 10
"""For a key to be typed in, where there is a terminal and none is known."""


class Wandb:
    """A run of a W&B project; a resumed run goes on in it."""

    def __init__(
        self,
        project: str = "agent-lightning",
        *,
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        """`mode`: None takes that of WANDB_MODE, or "online", which needs `wandb login`; "offline" writes
        files into the run's folder, for `wandb sync`."""
        check_installed("wandb", "wandb", "wandb")
        self.project, self.entity, self.mode = project, entity, mode
        self._run: Any = None

    def __repr__(self) -> str:
        return f"Wandb({self.project!r}, entity={self.entity!r}, mode={self.mode!r})"

    def start(self, beginning: Beginning) -> None:
        import wandb

        if wandb.run is None:
            # else it prints advice, and sends telemetry of its own even where the run is to be offline
            mode = self.mode or os.environ.get("WANDB_MODE", "online")
            wandb.setup(settings=wandb.Settings(silent=True, mode=mode))
        run = beginning.run
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            id=f"{run.id}-{run.created_at:.0f}",  # of runs with one name, on several machines, one each
            name=run.id,
            resume="allow",
            dir=run.folder,
            config={"config": run.config, **run.provenance},
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                login_timeout=LOGIN_SECONDS,
                reinit="create_new",  # the app may have a run of its own
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._run.define_metric("*", step_metric="step")
        log.info("W&B has run %r at %s", run.id, self._run.url or self._run.dir)

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        self._run.log({**values, "step": step, "measured_at": at})

    def alert(self, alert: Alert) -> None:
        level = "ERROR" if alert.level == "critical" else "WARN"
        self._run.alert(title=f"{alert.rule} in {alert.run_id}", text=alert.message, level=level)

    def finish(self, status: str) -> None:
        import wandb

        self._run.finish(exit_code=0 if status == "finished" else 1)
        if wandb.run is None:  # no other run uses its process
            wandb.teardown()
