"""The training loop: collect, credit, update, publish, on one page."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from lightning_core.air.report import rule_numbers
from lightning_core.credit.base import CreditReport, assign
from lightning_core.trainer.attendance import Attendance
from lightning_core.trainer.collect import count_agents
from lightning_core.trainer.course import Course
from lightning_core.trainer.display import Display
from lightning_core.trainer.gathering import Gathering, check_any_reward
from lightning_core.trainer.lesson import Lesson
from lightning_core.trainer.plan import plan_evaluation
from lightning_core.trainer.refilling import refill
from lightning_core.trainer.replay import Replay
from lightning_core.trainer.session import Session, failures
from lightning_core.trainer.staleness import describe
from lightning_core.trainer.stopwatch import Stopwatch
from lightning_core.trainer.summary import Evaluation, evaluation
from lightning_core.trainer.updating import Updating
from lightning_core.trainer.valuing import value, value_numbers
from lightning_core.trainer.versions import Versions
from lightning_core.trainer.watching import Watching
from lightning_core.types import Metrics, Task, Trajectory

log = logging.getLogger(__name__)


class Loop:
    """The steps of one run over an open session."""

    def __init__(
        self,
        session: Session,
        display: Display,
        train: Sequence[Task],
        validation: Sequence[Task],
        watching: Watching,
    ) -> None:
        self.session = session
        self.display = display
        self.watching = watching
        self.gathering = Gathering(session, display, train)
        self.replay = Replay(session)
        self.updating = Updating(session, display)
        self.attendance = Attendance(session.trainer.patterns)
        self.versions = Versions(
            session.store, session.folder, session.backend, session.trainer.keep_checkpoints
        )
        self.validation = validation
        self.trainer = session.trainer
        self.run_id = session.folder.run_id
        self._referred: int | None = None
        """First step of the phase whose start is the reference; None: the run's."""
        self._stopwatch = Stopwatch(session.backend)
        """Of the time since the step, or the evaluation, before this one ended."""

    async def run(self, first: int) -> None:
        """Steps `first` to the last one, with the evaluations due before, between and after them."""
        every = self.trainer.evaluate_every
        known = [e for e in await self.session.store.list_metrics(self.run_id) if e.step < first]
        self.attendance.remember(known)
        if told := await self.versions.begin(first, self.trainer.total_steps):
            self.display.note(told)
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
        algorithm = course.algorithm
        if algorithm.teaching is None:
            self.attendance.see(lesson.calls)
            self.attendance.check(last=step + 1 == self.trainer.total_steps)
        valued = await value(lesson.trajectories, algorithm, self.session.backend)
        credited, report = await asyncio.to_thread(  # 0.3 s for 64 rollouts of 100 calls
            assign, valued, course.credit, algorithm.baseline, algorithm.scale
        )
        if report.unusable:
            log.warning(
                "step %d: credit=%r gave groups %s numbers that are not finite or beyond 1e15, so they are "
                "left out",
                step,
                algorithm.credit,
                ", ".join(report.unusable),
            )
        again = await self.replay.recall(step, course)
        self.replay.keep(step, course, credited)
        metrics = {**value_numbers(credited), **await self.updating.update(step, algorithm, credited, again)}
        seconds = {"collect_seconds": lesson.seconds, **self._stopwatch.read()}
        values = {**_numbers(lesson, report), **self._air_numbers(lesson), **metrics, **seconds}
        entry = Metrics(run_id=self.run_id, step=step, values=values)
        await self.session.store.put_metrics(entry)
        self._stopwatch.start()
        await self.versions.sampled(lesson.trajectories)
        await self.checkpoint(step + 1)
        await self.watching.stepped(entry)
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
        await self.session.backend.set_reference(folder)
        self._referred = course.first

    async def checkpoint(self, step: int) -> None:
        """Save the state after `step` updates, if it is time to."""
        if step % self.trainer.checkpoint_every and step != self.trainer.total_steps:
            return
        await self.versions.checkpoint(step)

    async def evaluate(self, step: int) -> Evaluation | None:
        """The validation tasks under the policy as it is after `step` updates."""
        if not self.validation:
            return None
        attempts, version = self.trainer.on_failure.max_attempts, self.session.pin()
        plan = partial(plan_evaluation, self.run_id, step, self.validation, attempts, version)
        finished = await self.gathering.finish(plan, "evaluation")
        if step == 0:
            check_any_reward(finished, "the first evaluation; fix the cause and start anew in another folder")
        calls, _ = await self.session.records(finished)
        self.attendance.see(calls)
        result = evaluation(step, finished, calls, self.trainer.breakdown)
        await self.versions.evaluated(result)
        self.display.evaluated(result)
        self.watching.evaluated(result)  # also one that was finished before a kill: it may not have been told
        self._stopwatch.start()
        return result

    def _air_numbers(self, lesson: Lesson) -> dict[str, float]:
        rulebook = self.session.rulebook
        return rule_numbers(rulebook.air.rules, lesson.rewards) if rulebook is not None else {}


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
    rewards = [trajectory.reward for trajectory in lesson.trajectories]
    return {
        **({"reward": fmean(rewards)} if rewards else {}),
        "rollouts": len(lesson.rollouts),
        "failures": len(failures(lesson.rollouts)),
        "groups": report.groups + lesson.unusable_groups,
        "unusable_groups": len(report.unusable) + lesson.unusable_groups,
        "refilled_groups": lesson.refilled,
        "zero_variance_groups": report.zero_variance_groups,
        **_entropy(lesson.trajectories),
        **{name: float(value) for name, value in numbers.items()},
    }


def _entropy(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Minus the mean log-probability of all that trained agents sampled, an estimate of the policy's entropy
    in nats per token. (`sampled_entropy` is that of what was trained on: of groups that differ alone.)"""
    sampled = [t.logprobs for each in trajectories for t in each.transitions if t.trained]
    tokens = sum(map(len, sampled))
    return {"entropy": -sum(map(sum, sampled)) / tokens} if tokens else {}
