"""Dynamic sampling: groups that say nothing are replaced by groups of other tasks.

Yu et al., DAPO, arXiv 2503.14476, section 3.2. A group says nothing if credit finds no difference in it, or
none but for intermediate rewards, or if no rollout of it came to a reward. What was run for it stays in the
lesson, where it is counted like any other; no loss comes of it but what intermediate rewards make.

The tasks come in an order that follows from the seed and the step, and with it the ids of their rollouts, so
a resumed run asks for nothing twice. When all tasks are used up, the step goes on with what there is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from lightning_core.credit.base import assign
from lightning_core.credit.finals import only_finals
from lightning_core.trainer.collect import to_trajectory
from lightning_core.trainer.course import Course
from lightning_core.trainer.gathering import Gathering, Lesson
from lightning_core.trainer.plan import plan_training, spare_tasks
from lightning_core.types import Rollout, Trajectory


async def refill(gathering: Gathering, step: int, course: Course, lesson: Lesson) -> Lesson:
    """The lesson with groups added until enough of the step say something, in at most `refill` rounds."""
    for turn in range(1, course.algorithm.refill + 1):
        planned = _plan(gathering, step, course, lesson)
        if not planned:
            break
        began = time.perf_counter()
        gathering.display.collecting(f"step {step + 1}, refill {turn}", planned)
        finished, _ = await gathering.session.run(planned)
        calls, rewards = await gathering.session.records(finished)
        finished, rewards = await gathering.judging.score(finished, calls, rewards)
        lesson = replace(
            lesson,
            rollouts=[*lesson.rollouts, *finished],
            calls={**lesson.calls, **calls},
            rewards={**lesson.rewards, **rewards},
            trajectories=[
                *lesson.trajectories,
                *(to_trajectory(r, calls[r.id], rewards[r.id]) for r in finished if r.reward is not None),
            ],
            seconds=lesson.seconds + time.perf_counter() - began,
            refilled=lesson.refilled + len({rollout.group_id for rollout in planned}),
        )
    return lesson


def _plan(gathering: Gathering, step: int, course: Course, lesson: Lesson) -> list[Rollout]:
    """A group of a task not yet used in this step for each one that is missing."""
    algorithm, trainer = course.algorithm, gathering.trainer
    wanted, done = algorithm.tasks_per_step, lesson.refilled
    missing = max(0, wanted - len(_telling(course, lesson.trajectories)))
    spare = spare_tasks(gathering.tasks, step, wanted, trainer.seed)[done : done + missing]
    attempts = trainer.on_failure.max_attempts
    return plan_training(gathering.run_id, step, spare, algorithm.group_size, attempts, first=wanted + done)


def _telling(course: Course, trajectories: Sequence[Trajectory]) -> set[str]:
    """The groups that carry loss, and would by their final rewards alone."""
    algorithm = course.algorithm
    found: list[set[str]] = []
    for batch in (trajectories, map(only_finals, trajectories)):
        credited, _ = assign(batch, course.credit, algorithm.baseline, algorithm.scale)
        found.append({each.group_id for each in credited})
    return found[0] & found[1]
