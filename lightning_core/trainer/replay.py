"""Replay: the credited trajectories of the last steps, trained on again.

After its own batch a step makes one more update from each of the last n steps' batches, the latest first.
Advantages are those of the batch's own step: they compare rollouts of one time with one another. What has
changed since is made up for by the importance weights of the algorithm's `correction`. A rollout is trained
on n + 1 times and is then forgotten.

What this process does not remember, after a resume, is read from the store and credited by the same pure
functions, which gives the same. An algorithm with a critic does not replay: its critic would be fitted again
to what rollouts of an older policy came to.
"""

from __future__ import annotations

from lightning_core.credit.base import assign
from lightning_core.trainer.course import Course
from lightning_core.trainer.lesson import read_lesson
from lightning_core.trainer.plan import is_planned
from lightning_core.trainer.session import Session
from lightning_core.types import Trajectory


class Replay:
    """The memory of one run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._batches: dict[int, list[Trajectory]] = {}
        """By step."""

    async def recall(self, step: int, course: Course) -> list[list[Trajectory]]:
        """The batches that step `step` trains on again: of the last steps of its phase, the latest first."""
        oldest = max(course.first, step - course.algorithm.replay)
        self._batches = {k: batch for k, batch in self._batches.items() if k >= oldest}
        for k in range(oldest, step):
            if k not in self._batches:
                self._batches[k] = await self._read(k, course)
        return [batch for k in range(step - 1, oldest - 1, -1) if (batch := self._batches[k])]

    def keep(self, step: int, course: Course, credited: list[Trajectory]) -> None:
        """Remember the batch of a step, if its algorithm replays."""
        if course.algorithm.replay:
            self._batches[step] = credited

    async def _read(self, step: int, course: Course) -> list[Trajectory]:
        """The batch of a step as it was trained on, from the store."""
        run_id = self.session.folder.run_id
        rollouts = await self.session.store.find_rollouts(run_id, step=step, split="train")
        planned = [rollout for rollout in rollouts if is_planned(rollout)]
        lesson = await read_lesson(self.session, None, planned)  # what a judge gave is stored
        algorithm = course.algorithm
        return assign(lesson.trajectories, course.credit, algorithm.baseline, algorithm.scale)[0]
