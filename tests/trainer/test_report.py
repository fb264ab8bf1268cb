"""The figures of a run's report, worked out by hand from records in a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_core.records.types import Reward, Task
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.plan import RolloutPlan
from lightning_core.trainer.report import find_evaluation
from tests.build import make_call

TASKS = [Task(id=f"t{n}", input={"number": n}, split="validation") for n in range(2)]


async def evaluate(
    store: Store, step: int, rewards: Sequence[float | None], own: Mapping[str, Sequence[float]]
) -> None:
    """Record an evaluation of run `r`: for each task the rollouts' reward, None for one that fails, and what
    the app gives single agents. In each rollout `writer` and `checker` made a call."""
    await store.enqueue(RolloutPlan("r", step).evaluate(TASKS))
    for attempt in await store.lease("w", 2 * len(TASKS), 60.0):
        name, place = attempt.rollout.id, int(attempt.rollout.task.id[1:])
        for agent in ("writer", "checker"):
            await store.add_call(make_call(f"{agent}-{name}", rollout_id=name, agent=agent))
        await store.add_rewards(
            [Reward(rollout_id=name, attempt=1, value=each[place], agent=agent) for agent, each in own.items()]
        )
        given = rewards[place]
        await store.finish(attempt, reward=given, error=None if given is not None else "ValueError: no")


async def test_an_agent_s_held_out_score_is_its_own_reward_where_it_has_one() -> None:
    async with MemoryStore("memory://") as store:
        await evaluate(store, 0, [1.0, 1.0], {"checker": [0.0, 0.5]})
        await evaluate(store, 1, [1.0, None], {"checker": [0.5, 1.0]})
        first, second = [await find_evaluation(store, "r", step, None) for step in (0, 1)]
    assert first is not None
    assert second is not None
    agents = {name: each.success for name, each in first.detail["greedy"].agents.items()}
    assert agents == {"writer": 1.0, "checker": 0.25}
    # of the rollout that failed nothing counts
    agents = {name: each.success for name, each in second.detail["sampled"].agents.items()}
    assert agents == {"writer": 0.5, "checker": 0.25}
