"""How the rollouts of a run are run, as its trainer wrote it into the record that every runner reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lightning_core.errors import ConfigError
from lightning_core.stores.base import Store
from lightning_core.stores.rules import last_final
from lightning_core.types import REWARD_RANGE, Attempt, Call, Run, is_reward

RECORDED = "rollouts"
"""Where in the run's configuration it is written."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """A failure of the world is tried again, then dropped; one that follows the policy's replies counts.

    Of the world: a connection, a server's error, a killed worker (`outcome.is_of_world`), and whatever fails
    before a trained agent had a reply. The rest may be the policy's doing. Were it tried again until it goes
    well, or dropped, what crashes the app would be compared by its good tries alone, and rise.
    """

    retries: int = 1
    """Further attempts after the first; a rollout is enqueued with `max_attempts = 1 + retries`."""
    then: Literal["lowest", "drop"] | float = "lowest"
    """The return of a failure after the policy's replies. "lowest": the lowest return of its group or 0,
    whichever is less; in a validation nothing. A number: that, and so is the return of one before any reply
    when its tries are used up. "drop": nothing, it is handled like a failure of the world. It is the whole
    return of such a rollout: its intermediate rewards do not count."""
    strict: bool = False
    """Whether a rollout fails too if calls of it, or beside it, were noticed and could not be recorded: those
    of the alert `unseen_calls`. Its reward may rest on replies that are not trained on."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries!r} of the failure policy must be 0 or more")
        if self.then not in ("lowest", "drop") and (isinstance(self.then, str) or not is_reward(self.then)):
            raise ConfigError(
                f"then={self.then!r} of the failure policy must be 'lowest', 'drop' or {REWARD_RANGE}"
            )

    @property
    def max_attempts(self) -> int:
        """The number of attempts to enqueue a rollout with."""
        return 1 + self.retries

    def reward_of_failure(self, attempt: Attempt, calls: Iterable[Call], *, world: bool) -> float | None:
        """The reward to end a failed attempt with; None if it is tried again or dropped.

        `calls`: those of the rollout. `world`: whether the error is one of the world. With "lowest" it is 0
        until the trainer knows the group (`transitions`).
        """
        replied = any(c.trained and c.status == "completed" and c.attempt == attempt.number for c in calls)
        last = attempt.number >= attempt.rollout.max_attempts
        if world or self.then == "drop":
            return None
        if self.then == "lowest":
            return 0.0 if replied and attempt.rollout.split == "train" else None
        return self.then if replied or last else None


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
