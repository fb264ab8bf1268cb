"""The curve in the terminal, and the task that is shown before and after."""

from __future__ import annotations

import pytest

from lightning_core.records.types import Metrics, Task
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.plan import RolloutPlan
from lightning_core.trainer.report import terminal_curve, transcripts

pytest.importorskip("plotext")


def steps(*rewards: float) -> list[Metrics]:
    return [Metrics(run_id="r", step=n, values={"reward": reward}) for n, reward in enumerate(rewards)]


@pytest.mark.parametrize(("reward", "said"), [(0.0, "0"), (0.5, "0.5"), (3.0, "3")])
def test_a_reward_that_never_changes_is_said_in_words(reward, said):
    assert terminal_curve(steps(*[reward] * 7)) == f"training reward: {said} in each of 7 steps"


def test_the_steps_of_a_curve_are_whole_numbers_from_1():
    axis = terminal_curve(steps(*(n / 8 for n in range(8)))).splitlines()[-2]
    assert axis.split() == ["1", "2", "4", "6", "8"]


async def test_the_task_that_gained_most_is_shown_with_its_rewards_as_they_are():
    tasks = [Task(id=name, input={"question": f"question {name}"}, split="validation") for name in "abc"]
    rewards = {0: {"a": 0.25, "b": 0.0, "c": 1.0}, 3: {"a": 0.75, "b": 1.5, "c": 0.5}}
    async with MemoryStore("memory://") as store:
        for step, by_task in rewards.items():
            await store.enqueue(RolloutPlan("r", step).evaluate(tasks))
            for attempt in await store.lease("w", 6, 60.0):
                await store.finish(attempt, reward=by_task[attempt.rollout.task.id])
        shown = await transcripts(store, "r", 3)
    assert "question b" in shown
    assert "(reward 0)" in shown
    assert "(reward 1.5)" in shown
