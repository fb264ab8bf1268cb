"""The figures of a run's report, worked out by hand from records in a store."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from lightning_core.records.types import Metrics, Reward, Run, Task
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.display import held_out_table, time_line
from lightning_core.trainer.plan import RolloutPlan
from lightning_core.trainer.report import find_evaluation, find_evidence, summarise
from lightning_core.trainer.summary import Summary
from tests.build import make_call

TASKS = [Task(id=f"t{n}", input={"number": n}, split="validation") for n in range(2)]


async def evaluate(
    store: Store,
    step: int,
    rewards: Sequence[float | None],
    own: Mapping[str, Sequence[float]],
    run: str = "r",
) -> None:
    """Record an evaluation of the run: for each task the rollouts' reward, None for one that fails, and what
    the app gives single agents. In each rollout `writer` and `checker` made a call."""
    await store.enqueue(RolloutPlan(run, step).evaluate(TASKS))
    for attempt in await store.lease("w", 2 * len(TASKS), 60.0):
        name, place = attempt.rollout.id, int(attempt.rollout.task.id[1:])
        for agent in ("writer", "checker"):
            await store.add_call(make_call(f"{agent}-{name}", rollout_id=name, agent=agent))
        await store.add_rewards(
            [
                Reward(rollout_id=name, attempt=1, value=each[place], agent=agent)
                for agent, each in own.items()
            ]
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


async def summary_of(store: Store, *steps: Metrics) -> Summary:
    run = Run(id="r", config={"model": "m", "seed": 3})
    evidence = await find_evidence(store, run, steps, await store.count_rollouts("r"))
    return await summarise(store, run, Path("r"), evidence)


def shown(summary: Summary) -> list[list[str]]:
    """The words of each line of the table of held-out rewards."""
    file = io.StringIO()
    Console(file=file, width=120).print(held_out_table(summary.held_out))
    lines = file.getvalue().replace("│", " ").replace("┃", " ").splitlines()
    return [words for line in lines if (words := line.split()) and words[0][0].isalnum()]


async def test_a_run_without_an_update_has_one_held_out_value() -> None:
    async with MemoryStore("memory://") as store:
        await evaluate(store, 0, [1.0, 0.5], {})
        summary = await summary_of(store)
    assert summary.after is None
    title, header, whole, *agents = shown(summary)
    assert title == ["held-out", "reward", "after", "0", "updates"]
    assert (header, whole) == (["tasks", "sampled", "greedy"], ["all", "2", "0.75", "0.75"])
    assert agents == [["agent", name, "2", "0.75", "0.75"] for name in ("checker", "writer")]


async def test_the_time_is_that_of_the_steps_and_beside_it_that_of_the_evaluations() -> None:
    steps = [Metrics(run_id="r", step=n, values={"step_seconds": 2.0}) for n in range(3)]
    async with MemoryStore("memory://") as store:
        for step in (0, 2, 3):
            await evaluate(store, step, [1.0, 0.5], {})
        summary = await summary_of(store, *steps)
    assert [each.step for each in summary.held_out] == [0, 2, 3]
    ends = {each.step: each.model_copy(update={"seconds": 4.0}) for each in summary.held_out}
    summary = summary.model_copy(update={"before": ends[0], "between": [ends[2]], "after": ends[3]})
    assert time_line(summary) == "3 steps in 6 s, evaluations in 12 s"


async def test_an_evaluation_takes_from_the_first_request_for_a_rollout_to_the_last_end() -> None:
    async with MemoryStore("memory://") as store:
        await evaluate(store, 0, [1.0, 0.5], {})
        found = await find_evaluation(store, "r", 0, None)
        rollouts = await store.find_rollouts("r")
    ends = [rollout.finished_at or 0.0 for rollout in rollouts]
    assert found is not None
    assert found.seconds == max(ends) - min(rollout.created_at for rollout in rollouts) > 0
