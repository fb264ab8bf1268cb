"""The rules by which a run's trainer has its rollouts run: they hold for workers in any language too.

A run that no trainer opened has none, and its attempts end as they are finished.
"""

from __future__ import annotations

from lightning_core.errors import RewardError
from lightning_core.runner.config import RolloutConfig, read_config
from lightning_core.stores.base import Store
from lightning_core.stores.rules import holds, last_final
from lightning_core.types import Attempt


async def timeout_of(store: Store, attempt: Attempt) -> float | None:
    """The seconds that the attempt may take; None for no limit."""
    rules = await _rules(store, attempt)
    return None if rules is None else rules.timeout


async def reward_of(store: Store, attempt: Attempt, reward: float | None, error: str | None) -> float | None:
    """The reward to end the attempt with. Raises RewardError for a success whose reward nobody knows."""
    rules = await _rules(store, attempt)
    if reward is not None or rules is None:
        return reward
    if error is not None:
        return rules.on_failure.reward_of_failure(attempt)
    if holds(attempt, attempt.rollout):
        await _check_given(store, attempt, rules)
    return None


async def _check_given(store: Store, attempt: Attempt, rules: RolloutConfig) -> None:
    rollout = attempt.rollout
    if rules.judged and rollout.split == "train":
        return
    given = (await store.get_rewards([rollout.id]))[rollout.id]
    if last_final(given, attempt.number) is None:
        raise RewardError(
            f"rollout {rollout.id!r} was given no final reward and no judge will give it one; finish it with "
            "`reward`, or with `error` if it failed"
        )


async def _rules(store: Store, attempt: Attempt) -> RolloutConfig | None:
    run = await store.find_run(attempt.rollout.run_id)
    return None if run is None else read_config(run)
