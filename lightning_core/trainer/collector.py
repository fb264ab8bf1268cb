"""The collector: draws a step's tasks, has their rollouts made, and reads them back as the step's batch.

Demonstrations need no rollouts. With dynamic sampling, groups without a difference are replaced by groups of
other tasks: Yu et al., DAPO, arXiv 2503.14476, section 3.2.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from lightning_core.credit.base import assign, only_finals
from lightning_core.errors import TrainingError
from lightning_core.experience.transitions import last_planned
from lightning_core.insight.failures import reason_of
from lightning_core.records.types import Rollout, Status, Task, Trajectory
from lightning_core.stores.base import Store
from lightning_core.trainer.batch import StepBatch, read_batch
from lightning_core.trainer.curriculum import Groups, read_groups, value_of
from lightning_core.trainer.curriculum import draw as draw_curriculum
from lightning_core.trainer.demonstrations import draw
from lightning_core.trainer.judging import Judging
from lightning_core.trainer.parts import ResolvedPhase
from lightning_core.trainer.plan import admitted, spare_tasks, tasks_of_step
from lightning_core.trainer.rollouts import RolloutMaker

Plan = Callable[[int], list[Rollout]]
"""The rollouts to ask for; `plan(n)` has the n-th ids for the same places."""


class Collector:
    """Collects the batches of a run, step by step."""

    def __init__(self, maker: RolloutMaker, tasks: Sequence[Task]) -> None:
        self.maker = maker
        self.session = session = maker.session
        self.tasks = tasks
        self.settings = session.settings
        self.run_id = session.folder.run_id
        self._begun: set[int] = set()
        """Steps whose rollouts were first asked for by this process."""
        self._drawn: dict[int, list[Task]] = {}
        """The tasks of the steps that have begun."""
        self._ended: dict[int, Groups] = {}
        """The groups of steps that have ended, for a curriculum."""
        self.judging = Judging(self.settings.judge, session.store, session.folder)

    async def collect(self, step: int, phase: ResolvedPhase) -> StepBatch:
        """The batch of a step. Raises TrainingError if none of its rollouts has a reward."""
        began = time.perf_counter()
        if (given := phase.algorithm.learns_from) is not None:
            encoded = self.session.demonstrations[phase.first]
            drawn = draw(encoded, step - phase.first, given.batch_size, self.settings.seed)
            return StepBatch([], {}, drawn, time.perf_counter() - began)
        await self._begin(step, phase)
        plan = partial(self._plan, step, phase)
        rollouts = await self.finish(plan, f"step {step + 1}", again=step not in self._begun)
        batch = await self._read(rollouts, began)
        where = f"step {step + 1}; fix the cause and resume"
        await check_any_reward(self.session.store, batch.rollouts, where)
        return await self._sample_more(step, phase, batch)

    async def finish(self, plan: Plan, what: str, *, again: bool = False) -> list[Rollout]:
        """The rollouts of `plan(0)`, all finished; those withdrawn are run again under the ids of `plan(n)`.
        With `again` so are all, if every one of them had failed in an earlier life."""
        for retry in itertools.count():
            rollouts = plan(retry)
            self.session.observers.collecting(what, rollouts)
            finished, new = await self.maker.run(rollouts)
            if new or not again or any(rollout.status is Status.SUCCEEDED for rollout in finished):
                break
        return await self._without_cancelled(finished, lambda more: plan(retry + more))

    async def _read(self, rollouts: Sequence[Rollout], began: float) -> StepBatch:
        session, lowest = self.session, self.settings.on_failure.lowest
        return await read_batch(session.store, session.rulebook, self.judging, rollouts, began, lowest=lowest)

    async def _begin(self, step: int, phase: ResolvedPhase) -> None:
        """Ask for the rollouts of all steps that may begin by now; those of earlier steps are run first."""
        for each in admitted(step, phase, self.settings.total_steps):
            if each not in self._drawn:
                self._drawn[each] = await self._draw(each, phase)
            if await self.session.store.enqueue(self._plan(each, phase)):
                self._begun.add(each)

    async def _without_cancelled(self, finished: list[Rollout], plan: Plan) -> list[Rollout]:
        """The rollouts, with new ones, in the same groups, for those that were withdrawn on resume."""
        for retry in itertools.count(1):
            places = [i for i, rollout in enumerate(finished) if rollout.status is Status.CANCELLED]
            if not places:
                break
            planned = plan(retry)
            again = [planned[i].model_copy(update={"group_id": finished[i].group_id}) for i in places]
            self.session.observers.collecting("withdrawn, again", again)
            for i, rollout in zip(places, (await self.maker.run(again))[0], strict=True):
                finished[i] = rollout
        return finished

    def _plan(self, step: int, phase: ResolvedPhase, retry: int = 0) -> list[Rollout]:
        return self._groups(step, phase, self._drawn[step], 0, retry)

    async def _draw(self, step: int, phase: ResolvedPhase) -> list[Task]:
        """The tasks of a step. A curriculum knows the rewards of the steps that had ended when this one's
        rollouts could first be asked for, so a resumed run draws the same."""
        count, seed, field = phase.algorithm.tasks_per_step, self.settings.seed, phase.algorithm.curriculum
        if field is None:
            return tasks_of_step(self.tasks, step, count, seed)
        before: dict[int, Groups] = {}
        for each in range(phase.first, step):
            ended = each < step - phase.algorithm.staleness
            if ended or each not in self._drawn:
                groups = await self._groups_of(each, field, count)
            else:
                groups = [(value_of(task, field), ()) for task in self._drawn[each]]
            before[each] = groups if ended else [(value, ()) for value, _ in groups]
        return draw_curriculum(self.tasks, field, before, step, count, seed)

    async def _groups_of(self, step: int, field: str, count: int) -> Groups:
        """The groups of a step that has ended."""
        if step not in self._ended:
            found = await self.session.store.find_rollouts(self.run_id, step=step, split="train")
            self._ended[step] = read_groups(last_planned(found), field, count)
        return self._ended[step]

    def _groups(
        self, step: int, phase: ResolvedPhase, tasks: Sequence[Task], first: int, retry: int
    ) -> list[Rollout]:
        """A group of each task; `first` is the place in the step of the first one."""
        algorithm = phase.algorithm
        plan = self.maker.plan(step, retry, algorithm.staleness)
        return plan.train(tasks, algorithm.group_size, first, self.settings.temperature)

    # dynamic sampling -------------------------------------------------------------------------
    async def _sample_more(self, step: int, phase: ResolvedPhase, batch: StepBatch) -> StepBatch:
        """The batch with groups added until enough of them carry loss, in at most `dynamic_sampling` rounds.

        The tasks come in an order that follows from seed and step, and with it the ids of their rollouts, so
        a resumed run asks for none twice. When all tasks are used up, the step goes on with what there is.
        """
        for turn in range(1, phase.algorithm.dynamic_sampling + 1):
            tasks = await asyncio.to_thread(self._spare, step, phase, batch)
            if not tasks:
                break
            began = time.perf_counter()
            first = phase.algorithm.tasks_per_step + batch.added_groups
            plan = partial(self._groups, step, phase, tasks, first)
            rollouts = await self.finish(plan, f"step {step + 1}, added groups {turn}")
            batch = batch.with_groups(await self._read(rollouts, began))
        return batch

    def _spare(self, step: int, phase: ResolvedPhase, batch: StepBatch) -> list[Task]:
        """A task not yet used in this step for each group that is missing."""
        wanted, added = phase.algorithm.tasks_per_step, batch.added_groups
        missing = max(0, wanted - len(_with_loss(phase, batch.trajectories)))
        spare = spare_tasks(self.tasks, self._drawn[step], step, self.settings.seed)
        return spare[added : added + missing]


def _with_loss(phase: ResolvedPhase, trajectories: Sequence[Trajectory]) -> set[str]:
    """The groups that carry loss, and would by their final rewards alone."""
    algorithm = phase.algorithm
    found: list[set[str]] = []
    for each in (trajectories, map(only_finals, trajectories)):
        credited, _ = assign(each, phase.credit, algorithm.baseline, algorithm.scale)
        found.append({trajectory.group_id for trajectory in credited})
    return found[0] & found[1]


async def check_any_reward(store: Store, rollouts: Sequence[Rollout], where: str) -> None:
    """Raise TrainingError with the app's own error if no rollout has a reward, and with the failed calls that
    went elsewhere than to the gateway: they may be a trained agent's under another name."""
    if any(rollout.reward is not None for rollout in rollouts):
        return
    calls = itertools.chain.from_iterable((await store.get_calls([each.id for each in rollouts])).values())
    lost = Counter(
        (call.agent, call.endpoint) for call in calls if call.status == "failed" and call.endpoint is not None
    )
    elsewhere = "".join(
        f"\n{count} failed calls of {agent!r}, who is not trained, went to {endpoint}; if they are a trained "
        "agent's, give agents= that name, or put them in `with lightning.agent(...)`"
        for (agent, endpoint), count in sorted(lost.items())
    )
    first = reason_of(rollouts[0])
    error = rollouts[0].error if first.hint is None else first.text
    raise TrainingError(
        f"all {len(rollouts)} rollouts failed in {where}. The first error:\n{error}{elsewhere}"
    )
