"""Dynamic sampling: groups that say nothing are replaced by groups of other tasks.

Yu et al., DAPO, arXiv 2503.14476, section 3.2. A group says nothing if credit finds no difference in it, or
none but for intermediate rewards, or if no rollout of it came to a reward. What was run for it stays in the
lesson, where it is counted like any other; no loss comes of it but what intermediate rewards make.

The tasks come in an order that follows from the seed and the step, and with it the ids of their rollouts, so
a resumed run asks for nothing twice. When all tasks are used up, the step goes on with what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from lightning_core.credit.base import assign
from lightning_core.credit.finals import only_finals
from lightning_core.trainer.course import Course
from lightning_core.trainer.gathering import Gathering
from lightning_core.trainer.lesson import Lesson
from lightning_core.trainer.plan import plan_training, spare_tasks
from lightning_core.types import Rollout, Task, Trajectory


async def refill(gathering: Gathering, step: int, course: Course, lesson: Lesson) -> Lesson:
    """The lesson with groups added until enough of the step say something, in at most `refill` rounds."""
    for turn in range(1, course.algorithm.refill + 1):
        tasks = await asyncio.to_thread(_spare, gathering, step, course, lesson)
        if not tasks:
            break
        plan = partial(_plan, gathering, step, course, tasks, lesson.refilled)
        lesson = lesson.with_groups(await gathering.add(plan, f"step {step + 1}, refill {turn}"))
    return lesson


def _spare(gathering: Gathering, step: int, course: Course, lesson: Lesson) -> list[Task]:
    """A task not yet used in this step for each group that is missing."""
    wanted, done = course.algorithm.tasks_per_step, lesson.refilled
    missing = max(0, wanted - len(_telling(course, lesson.trajectories)))
    return spare_tasks(gathering.tasks, step, wanted, gathering.trainer.seed)[done : done + missing]


def _plan(
    gathering: Gathering, step: int, course: Course, tasks: Sequence[Task], done: int, retry: int
) -> list[Rollout]:
    """A group of each task, after `done` earlier ones; each `retry` has ids of its own."""
    algorithm, attempts = course.algorithm, gathering.trainer.on_failure.max_attempts
    first, version = algorithm.tasks_per_step + done, gathering.session.pin(algorithm.staleness)
    return plan_training(gathering.run_id, step, tasks, algorithm.group_size, attempts, retry, first, version)


def _telling(course: Course, trajectories: Sequence[Trajectory]) -> set[str]:
    """The groups that carry loss, and would by their final rewards alone."""
    algorithm = course.algorithm
    found: list[set[str]] = []
    for batch in (trajectories, map(only_finals, trajectories)):
        credited, _ = assign(batch, course.credit, algorithm.baseline, algorithm.scale)
        found.append({each.group_id for each in credited})
    return found[0] & found[1]
