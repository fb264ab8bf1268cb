"""The training loop: collect, credit, update, publish, on one page."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from lightning_core.air.report import rule_numbers
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.credit.base import CreditReport, assign
from lightning_core.errors import TrainingError
from lightning_core.trainer.collect import check_patterns, count_agents
from lightning_core.trainer.course import Course
from lightning_core.trainer.display import Display
from lightning_core.trainer.gathering import Gathering, Lesson, check_any_reward
from lightning_core.trainer.plan import plan_evaluation
from lightning_core.trainer.refilling import refill
from lightning_core.trainer.replay import Replay
from lightning_core.trainer.session import Session, failures
from lightning_core.trainer.staleness import describe, measure
from lightning_core.trainer.summary import Evaluation, evaluation
from lightning_core.trainer.valuing import value, value_numbers
from lightning_core.types import Call, Metrics, ResourceVersion, Task, Trajectory

logger = logging.getLogger(__name__)

MOST_SKIPPED = 3
"""Updates in a row that may fail before the run stops."""


class Loop:
    """The steps of one run over an open session."""

    def __init__(
        self, session: Session, display: Display, train: Sequence[Task], validation: Sequence[Task]
    ) -> None:
        self.session = session
        self.display = display
        self.gathering = Gathering(session, display, train)
        self.replay = Replay(session)
        self.validation = validation
        self.trainer = session.trainer
        self.run_id = session.folder.run_id
        self._skipped = 0
        self._referred: int | None = None
        """First step of the phase whose start is the reference; None: the run's."""
        asking = (course.first for course in session.courses if course.algorithm.teaching is None)
        self._first_asking = next(asking, None)
        """The first step that has rollouts."""
        self._seen: set[str] = set()
        """Agents that have made a call since this process began."""
        self._ended = time.perf_counter()
        """When the step, or the evaluation, before this one ended."""

    async def run(self, first: int) -> None:
        """Steps `first` to the last one, with the evaluations due before, between and after them."""
        every = self.trainer.evaluate_every
        if first == 0:
            await self.evaluate(0)
        for step in range(first, self.trainer.total_steps):
            if step and every and step % every == 0:
                await self.evaluate(step)
            await self.step(step)
        if self.trainer.total_steps:
            await self.evaluate(self.trainer.total_steps)

    async def step(self, step: int) -> None:
        """One update: what was recorded, what it was worth, what it changed."""
        course = self.session.course(step)
        await self._refer(step, course)
        lesson = await refill(self.gathering, step, course, await self.gathering.gather(step, course))
        self._see(lesson.calls)
        if step == self._first_asking:
            check_patterns(self.trainer.patterns, self._seen)
        algorithm = course.algorithm
        valued = await value(lesson.trajectories, algorithm, self.session.backend)
        credited, report = assign(valued, course.credit, algorithm.baseline, algorithm.scale)
        again = await self.replay.recall(step, course)
        self.replay.keep(step, course, credited)
        metrics = {**value_numbers(credited), **await self.update(step, algorithm, credited, again)}
        seconds = {"collect_seconds": lesson.seconds, "step_seconds": time.perf_counter() - self._ended}
        values = {**_numbers(lesson, report), **self._air_numbers(lesson), **metrics, **seconds}
        await self.session.store.put_metrics(Metrics(run_id=self.run_id, step=step, values=values))
        self._ended = time.perf_counter()
        await self.checkpoint(step + 1)
        tokens = sum(len(t.completion_ids) for each in lesson.trajectories for t in each.transitions)
        rate = tokens / (seconds["step_seconds"] if algorithm.staleness else lesson.seconds)
        stale = describe(metrics.get("staleness_mean", 0.0), metrics.get("staleness_max", 0.0))
        self.display.step_done(values.get("reward"), len(failures(lesson.rollouts)), rate, stale)

    async def _refer(self, step: int, course: Course) -> None:
        """From its first step on, a later phase has the policy that it found as its reference."""
        if not course.first or not course.algorithm.needs_reference or self._referred == course.first:
            return
        folder = self.session.folder.reference(course.first)
        if step == course.first:
            await self.session.backend.export(folder)
        await self.session.backend.refer(folder)
        self._referred = course.first

    async def update(
        self,
        step: int,
        algorithm: Algorithm,
        credited: list[Trajectory],
        again: Sequence[list[Trajectory]] = (),
    ) -> dict[str, float]:
        """Update, train on `again`, and publish; an update that can't be made is skipped and counted, a few
        times."""
        backend = self.session.backend
        if not credited:
            self.display.note(
                f"step {step + 1}: no group says which of its rollouts were good; nothing to learn"
            )
            return {"skipped_updates": 1.0}
        self.display.updating(f"step {step + 1}")
        try:
            metrics = await backend.update(Batch(step, tuple(credited)), algorithm)
        except TrainingError as problem:
            self._skipped += 1
            logger.warning("step %d: update skipped: %s", step, problem)
            if self._skipped >= MOST_SKIPPED:
                raise
            return {"skipped_updates": 1.0}
        self._skipped = 0
        metrics |= await self._update_again(step, algorithm, again)
        if algorithm.teaching is None:  # a demonstration was sampled by nobody
            metrics |= measure(itertools.chain(credited, *again), backend.policy_version)
        return {**metrics, "policy_version": float(await backend.publish())}

    async def _update_again(
        self, step: int, algorithm: Algorithm, batches: Sequence[list[Trajectory]]
    ) -> dict[str, float]:
        """An update from each of the earlier batches; one that can't be made is left out."""
        metrics: list[dict[str, float]] = []
        for batch in batches:
            try:
                metrics.append(await self.session.backend.update(Batch(step, tuple(batch)), algorithm))
            except TrainingError as problem:
                logger.warning("step %d: a batch was not replayed: %s", step, problem)
        names = metrics[0] if metrics else ()
        return {f"replay/{name}": fmean(each[name] for each in metrics) for name in names}

    async def checkpoint(self, step: int) -> None:
        """Save the state after `step` updates, if it is time to."""
        if step % self.trainer.checkpoint_every and step != self.trainer.total_steps:
            return
        folder = self.session.folder
        backend = self.session.backend
        path = folder.checkpoint(step)
        await backend.save(path)
        await self.session.store.put_resource(
            ResourceVersion(run_id=self.run_id, version=backend.policy_version, uri=str(path))
        )
        folder.prune_checkpoints(self.trainer.keep_checkpoints)

    async def evaluate(self, step: int) -> Evaluation | None:
        """The validation tasks under the policy as it is after `step` updates."""
        if not self.validation:
            return None
        rollouts = plan_evaluation(self.run_id, step, self.validation, self.trainer.on_failure.max_attempts)
        self.display.collecting("evaluation", rollouts)
        finished, _ = await self.session.run(rollouts)
        if step == 0:
            check_any_reward(finished, "the first evaluation; fix the cause and start anew in another folder")
        calls, _ = await self.session.records(finished)
        self._see(calls)
        result = evaluation(step, finished, calls, self.trainer.breakdown)
        self.display.evaluated(result)
        self._ended = time.perf_counter()
        return result

    def _air_numbers(self, lesson: Lesson) -> dict[str, float]:
        rulebook = self.session.rulebook
        return rule_numbers(rulebook.air.rules, lesson.rewards) if rulebook is not None else {}

    def _see(self, calls: Mapping[str, Sequence[Call]]) -> None:
        self._seen.update(call.agent for part in calls.values() for call in part)


def _numbers(lesson: Lesson, report: CreditReport) -> dict[str, float]:
    """What there is to say of a step before its update."""
    counts = count_agents(call for part in lesson.calls.values() for call in part)
    numbers: Counter[str] = Counter()
    for name, agent in counts.items():
        numbers[f"agent/{name}/calls"] = agent.calls
        numbers[f"agent/{name}/completion_tokens"] = agent.completion_tokens
        numbers[f"agent/{name}/trained"] = int(agent.trained)
        numbers[f"agent/{name}/transitions"] = report.transitions[name]
    if not lesson.rollouts:
        for name, count in report.transitions.items():
            numbers[f"agent/{name}/trained"] = 1
            numbers[f"agent/{name}/transitions"] = count
        return {name: float(value) for name, value in numbers.items()} | {"demonstrations": report.groups}
    return {
        "reward": fmean(trajectory.reward for trajectory in lesson.trajectories),
        "rollouts": len(lesson.rollouts),
        "failures": len(failures(lesson.rollouts)),
        "groups": report.groups,
        "refilled_groups": lesson.refilled,
        "zero_variance_groups": report.zero_variance_groups,
        **{name: float(value) for name, value in numbers.items()},
    }
