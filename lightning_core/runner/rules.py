"""What whoever runs the rollouts of a run must know, as the trainer wrote it into the run's own record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.runner.policy import FailurePolicy
from lightning_core.types import Run

RECORDED = "rollouts"
"""Where in the run's configuration it is written."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a runner must know of the run."""

    solve: str
    """Name of the user's function."""
    timeout: float | None
    on_failure: FailurePolicy
    judged: bool
    """Whether training rollouts may end without a reward."""

    def written(self) -> dict[str, Any]:
        """As the run's record has it."""
        return asdict(self)


def read_rules(run: Run) -> Rules | None:
    """What the run's record says; None if it says nothing. Raises ConfigError if it can't be read."""
    written: Any = run.config.get(RECORDED)
    if written is None:
        return None
    try:
        return Rules(**{**written, "on_failure": FailurePolicy(**written["on_failure"])})
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"run {run.id!r} does not say in a readable way how its rollouts are run ({error}); its record "
            "was written by another version of this package, or by hand"
        ) from error
