"""How the rollouts of a run are run, as its trainer wrote it into the record that every runner reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.experience.returns import FailurePolicy, last_final
from lightning_core.records.types import Attempt, Run
from lightning_core.stores.base import Store

RECORDED = "rollouts"
"""Where in the run's configuration it is written."""


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """The settings of a run that a runner must know."""

    solve: str
    """Name of the user's function."""
    timeout: float | None
    """Seconds that one attempt may take; None: no limit."""
    on_failure: FailurePolicy
    judged: bool
    """Whether training rollouts may end without a reward."""

    def written(self) -> dict[str, Any]:
        """As the run's record has it."""
        return asdict(self)


def read_config(run: Run) -> RolloutConfig | None:
    """Returns the configuration in the run's record; None if it has none. Raises ConfigError if it can't be
    read."""
    written: Any = run.config.get(RECORDED)
    if written is None:
        return None
    try:
        return RolloutConfig(**{**written, "on_failure": FailurePolicy(**written["on_failure"])})
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"run {run.id!r} does not say in a readable way how its rollouts are run ({error}); its record "
            "was written by another version of this package, or by hand"
        ) from error


async def may_end_without_reward(store: Store, attempt: Attempt, *, judged: bool) -> bool:
    """Whether the store knows a final reward of the attempt, or a judge is to give one."""
    rollout = attempt.rollout
    if judged and rollout.split == "train":
        return True
    given = (await store.get_rewards([rollout.id]))[rollout.id]
    return last_final(given, attempt.number) is not None
