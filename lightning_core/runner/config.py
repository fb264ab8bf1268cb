"""How the rollouts of a run are run, as its trainer wrote it into the record that every runner reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from lightning_core.errors import ConfigError
from lightning_core.stores.base import Store
from lightning_core.stores.rules import last_final
from lightning_core.types import REWARD_RANGE, Attempt, Run, is_reward

RECORDED = "rollouts"
"""Where in the run's configuration it is written."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Try again, and when that is used up drop the rollout or give it a reward: never a silent 0."""

    retries: int = 1
    """Further attempts after the first; a rollout is enqueued with `max_attempts = 1 + retries`."""
    then: Literal["drop", "penalise"] = "drop"
    """"drop": the rollout is in no baseline and never trained on. "penalise": it ends with `penalty`
    as its reward and is trained on, so that the policy learns to avoid what made the app fail."""
    penalty: float = 0.0
    """The return of a penalised rollout: its intermediate rewards do not count."""
    strict: bool = False
    """Whether a rollout fails too if calls of it, or beside it, were noticed and could not be recorded: those
    of the alert `unseen_calls`. Its reward may rest on replies that are not trained on."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries!r} of the failure policy must be 0 or more")
        if self.then not in ("drop", "penalise"):
            raise ConfigError(f"then={self.then!r} of the failure policy must be 'drop' or 'penalise'")
        if not is_reward(self.penalty):
            raise ConfigError(f"penalty={self.penalty!r} of the failure policy must be {REWARD_RANGE}")

    @property
    def max_attempts(self) -> int:
        """What to enqueue a rollout with."""
        return 1 + self.retries

    def reward_of_failure(self, attempt: Attempt) -> float | None:
        """The reward to end a failed attempt with; None if it is tried again or dropped."""
        last = attempt.number >= attempt.rollout.max_attempts
        return self.penalty if last and self.then == "penalise" else None


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """What a runner must know of the run."""

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
    """What the run's record says; None if it says nothing. Raises ConfigError if it can't be read."""
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
