"""The training loop: collect, credit, update, publish, on one page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from lightning_core.air.rulebook import rule_numbers
from lightning_core.backends.base import Backend, Timed
from lightning_core.trainer.agent_names import AgentNames
from lightning_core.trainer.batch import StepBatch, step_numbers
from lightning_core.trainer.collector import Collector, check_any_reward
from lightning_core.trainer.parts import ResolvedPhase
from lightning_core.trainer.plan import plan_evaluation
from lightning_core.trainer.session import Session
from lightning_core.trainer.summary import Evaluation, evaluation
from lightning_core.trainer.updating import Updater
from lightning_core.trainer.versions import Versions
from lightning_core.types import Metrics, Task


class Loop:
    """The steps of one run over an open session."""

    def __init__(self, session: Session, train: Sequence[Task], validation: Sequence[Task]) -> None:
        self.session = session
        self.settings = session.settings
        self.observers = session.observers
        self.run_id = session.folder.run_id
        self.collector = Collector(session, train)
        self.updater = Updater(session)
        self.agent_names = AgentNames(self.settings.patterns)
        self.versions = Versions(
            session.store, session.folder, session.backend, self.settings.keep_checkpoints
        )
        self.validation = validation
        self._referenced: int | None = None
        """First step of the phase whose start is the reference; None: the run's."""
        self._stopwatch = Stopwatch(session.backend)
        """Of the time since the step, or the evaluation, before this one ended."""

    async def run(self, first: int, history: Sequence[Metrics]) -> None:
        """Steps `first` to the last one, with the evaluations due before, between and after them.

        `history` has the numbers of the steps before `first`.
        """
        total, every = self.settings.total_steps, self.settings.evaluate_every
        self.agent_names.remember(history)
        if note := await self.versions.begin(first, total):
            self.observers.note(note)
        if first == 0:
            await self.evaluate(0)
        for step in range(first, total):
            if step and every and step % every == 0:
                await self.evaluate(step)
            await self.step(step)
        if total:
            await self.evaluate(total)

    async def step(self, step: int) -> None:
        """One update: its rollouts, their credit, and what the update measures."""
        phase = self.session.phase(step)
        await self._set_reference(step, phase)
        batch = await self.collector.collect(step, phase)
        if phase.algorithm.learns_from is None:
            self.agent_names.see(batch.calls)
            self.agent_names.check(last=step + 1 == self.settings.total_steps)
        credited, report = await self.updater.credit(step, phase, batch.trajectories)
        measured = await self.updater.update(step, phase, credited)
        values = {
            **step_numbers(batch, report),
            **self._air_numbers(batch),
            **measured,
            "collect_seconds": batch.seconds,
            **self._stopwatch.read(),
        }
        metrics = Metrics(run_id=self.run_id, step=step, values=values)
        await self.session.store.put_metrics(metrics)
        self._stopwatch.start()
        await self.versions.sampled(batch.trajectories)
        await self.checkpoint(step + 1)
        await self.observers.step_ended(metrics)

    async def _set_reference(self, step: int, phase: ResolvedPhase) -> None:
        """From its first step on, a later phase has the policy that it found as its reference."""
        if not phase.first or not phase.algorithm.needs_reference or self._referenced == phase.first:
            return
        folder = self.session.folder.reference(phase.first)
        if step == phase.first:
            await self.session.backend.export(folder)
        await self.session.backend.set_reference(folder)
        self._referenced = phase.first

    async def checkpoint(self, step: int) -> None:
        """Save the state after `step` updates, if it is time to."""
        if step % self.settings.checkpoint_every and step != self.settings.total_steps:
            return
        await self.versions.checkpoint(step)

    async def evaluate(self, step: int) -> Evaluation | None:
        """The validation tasks under the policy as it is after `step` updates."""
        if not self.validation:
            return None
        attempts, version = self.settings.on_failure.max_attempts, self.session.pin()
        plan = partial(
            plan_evaluation, self.run_id, step, self.validation, attempts, version, seed=self.settings.seed
        )
        finished = await self.collector.finish(plan, "evaluation")
        if step == 0:
            check_any_reward(finished, "the first evaluation; fix the cause and use another folder")
        calls = await self.session.store.get_calls([rollout.id for rollout in finished])
        self.agent_names.see(calls)
        result = evaluation(step, finished, calls, self.settings.group_by)
        await self.versions.evaluated(result)
        self.observers.evaluated(result)
        self._stopwatch.start()
        return result

    def _air_numbers(self, batch: StepBatch) -> dict[str, float]:
        rulebook = self.session.rulebook
        return rule_numbers(rulebook.air.rules, batch.rewards) if rulebook is not None else {}


class Stopwatch:
    """Times a step: wall time, how much of it the backend was at work, and this process's processor time.

    The wall time in which the backend was not at work went to the app, and to recording, credit and the
    store. Started again at the end of each step and of each evaluation.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._began = self._read()

    def read(self) -> dict[str, float]:
        """Since the start: `step_seconds`, `process_seconds` of processor time of all threads of this process
        and, of a backend that measures it, `backend_seconds`."""
        now = self._read()
        return {name: value - self._began[name] for name, value in now.items()}

    def _read(self) -> dict[str, float]:
        read = {"step_seconds": time.perf_counter(), "process_seconds": time.process_time()}
        if isinstance(self._backend, Timed):
            read["backend_seconds"] = self._backend.busy_seconds
        return read
