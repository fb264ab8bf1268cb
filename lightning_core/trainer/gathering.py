"""Gathering what an update is made from: rollouts asked for, waited for, and read back as trajectories."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from lightning_core.errors import TrainingError
from lightning_core.trainer.course import Course
from lightning_core.trainer.display import Display
from lightning_core.trainer.judging import Judging
from lightning_core.trainer.lesson import Lesson, read_lesson
from lightning_core.trainer.plan import plan_training, tasks_of_step
from lightning_core.trainer.session import Session
from lightning_core.trainer.staleness import admitted
from lightning_core.trainer.teaching import draw
from lightning_core.types import Rollout, Status, Task


class Gathering:
    """Gathers the lessons of a run, step by step."""

    def __init__(self, session: Session, display: Display, tasks: Sequence[Task]) -> None:
        self.session = session
        self.display = display
        self.tasks = tasks
        self.trainer = session.trainer
        self.run_id = session.folder.run_id
        self._begun: set[int] = set()
        """Steps whose rollouts were first asked for by this process."""
        self.judging = Judging(session.trainer.judge, session.store, session.folder)

    async def gather(self, step: int, course: Course) -> Lesson:
        """The lesson of a step. Raises TrainingError if not one rollout came to a reward."""
        began = time.perf_counter()
        if (teaching := course.algorithm.teaching) is not None:
            place = step - course.first
            taught = draw(self.session.taught[course.first], place, teaching.batch_size, self.trainer.seed)
            return Lesson([], {}, taught, time.perf_counter() - began)
        await self._begin(step, course)
        lesson = await read_lesson(self.session, self.judging, await self._rollouts(step, course), began)
        check_any_reward(lesson.rollouts, f"step {step}; fix the cause and resume")
        return lesson

    async def _rollouts(self, step: int, course: Course) -> list[Rollout]:
        """The rollouts of a step, all finished; on resume, anew if every one of them had failed before."""
        for retry in itertools.count():
            rollouts = self._plan(step, course, retry)
            self.display.collecting(f"step {step + 1}", rollouts)
            finished, new = await self.session.run(rollouts)
            if new or step in self._begun or any(rollout.counts for rollout in finished):
                break
        return await self._without_cancelled(finished, lambda more: self._plan(step, course, retry + more))

    async def add(self, plan: Callable[[int], list[Rollout]], what: str) -> Lesson:
        """The lesson of the rollouts that `plan(0)` asks for beside those of a step; `plan(n)` is the same,
        with ids of its own."""
        began = time.perf_counter()
        return await read_lesson(self.session, self.judging, await self.finish(plan, what), began)

    async def finish(self, plan: Callable[[int], list[Rollout]], what: str) -> list[Rollout]:
        """The rollouts that `plan(0)` asks for, all finished; what was withdrawn of them is run under the ids
        of `plan(n)`."""
        rollouts = plan(0)
        self.display.collecting(what, rollouts)
        return await self._without_cancelled((await self.session.run(rollouts))[0], plan)

    async def _begin(self, step: int, course: Course) -> None:
        """Ask for the rollouts of all steps that may begin by now; those of earlier steps are run first."""
        for each in admitted(step, course, self.trainer.total_steps):
            if await self.session.store.enqueue(self._plan(each, course)):
                self._begun.add(each)

    async def _without_cancelled(
        self, finished: list[Rollout], plan: Callable[[int], list[Rollout]]
    ) -> list[Rollout]:
        """The rollouts with those anew, in the same groups, that were withdrawn when the run was resumed;
        `plan(n)` has their n-th ids."""
        for retry in itertools.count(1):
            places = [i for i, rollout in enumerate(finished) if rollout.status is Status.CANCELLED]
            if not places:
                break
            planned = plan(retry)
            anew = [planned[i].model_copy(update={"group_id": finished[i].group_id}) for i in places]
            self.display.collecting("withdrawn, anew", anew)
            for i, rollout in zip(places, (await self.session.run(anew))[0], strict=True):
                finished[i] = rollout
        return finished

    def _plan(self, step: int, course: Course, retry: int = 0) -> list[Rollout]:
        algorithm, trainer = course.algorithm, self.trainer
        tasks = tasks_of_step(self.tasks, step, algorithm.tasks_per_step, trainer.seed)
        attempts, version = trainer.on_failure.max_attempts, self.session.pin(algorithm.staleness)
        return plan_training(self.run_id, step, tasks, algorithm.group_size, attempts, retry, version=version)


def check_any_reward(rollouts: Sequence[Rollout], where: str) -> None:
    """Raise TrainingError with the app's own error if not one rollout came to a reward."""
    if all(rollout.reward is None for rollout in rollouts):
        raise TrainingError(
            f"all {len(rollouts)} rollouts failed in {where}. The first said:\n{rollouts[0].error}"
        )
