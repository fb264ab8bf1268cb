"""The updates of a step: credit, an update from its own batch, then those that replay, and publication.

Replay: after its own batch a step makes one more update from each of the last n steps' batches, the latest
first. Advantages are those of the batch's own step: they compare rollouts of one time with one another. The
importance weights of the algorithm's `correction` make up for what has changed since. A rollout is trained on
n + 1 times and is then forgotten. An algorithm with a critic does not replay: its critic would be fitted
again to the returns of an older policy.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pvariance

from lightning_core.alerts.rules import GAP_CAUSES, describe_gap
from lightning_core.algorithms.base import (
    Algorithm,
    Prepared,
    carries_loss,
    credit_batch,
    is_regularised,
    mini_batches,
)
from lightning_core.algorithms.entropy import measure_entropies
from lightning_core.backends.base import Backend, Batch
from lightning_core.credit.base import CreditReport
from lightning_core.errors import TrainingError
from lightning_core.experience.transitions import last_planned
from lightning_core.records.types import Credited, Key, Metrics, Trajectory
from lightning_core.trainer.batch import StepBatch, had_signal, read_batch
from lightning_core.trainer.learners import PolicyLearner, joined_numbers, sampled_by
from lightning_core.trainer.parts import ResolvedPhase
from lightning_core.trainer.session import Session
from lightning_core.trainer.teaching import teach

log = logging.getLogger(__name__)

MOST_GAP = 0.2, 0.5
"""Mean nats between what was sampled and what is trained beyond which a run stops: in float32, where rounding
makes 1e-6, and in half precision. Networks that were served wrong were 1 to 36 apart."""
MOST_SKIPPED = 3
"""Updates in a row that may fail before the run stops."""
SPREAD = 0.01
"""Deviation of the targets from which on there is something to explain; rewards are of the order of 1."""


class Updater:
    """Makes the updates of a run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._failed: Counter[str | None] = Counter()
        """Updates in a row that could not be made, by policy."""
        self._batches: dict[int, list[Trajectory]] = {}
        """Credited trajectories to replay, by step."""
        self._entropies: dict[int, dict[str, float]] = {}
        """Entropy of each agent's sampled tokens, in nats per token, by step."""
        self._first: int | None = None
        """The first step in which returns within a group differed; before it there is nothing to learn, and a
        bonus on entropy alone would move the policy."""

    def recall(self, history: Iterable[Metrics]) -> None:
        """The numbers of the steps that were made before this process began."""
        for each in history:
            self._entropies[each.step] = {
                name.removeprefix("agent/").removesuffix("/entropy"): value
                for name, value in each.values.items()
                if name.startswith("agent/") and name.endswith("/entropy")
            }
            if self._first is None and had_signal(each.values):
                self._first = each.step

    async def credit(
        self, step: int, phase: ResolvedPhase, batch: StepBatch
    ) -> tuple[list[Trajectory], CreditReport]:
        """The trajectories with advantages, and the critic's values if the algorithm has one. What they were
        given is stored, if they are of rollouts."""
        self._entropies[step] = measure_entropies(batch.trajectories)
        algorithm = phase.algorithm
        valued = await add_values(batch.trajectories, algorithm, self.session.backend)
        credited, report = await asyncio.to_thread(  # 0.3 s for 64 rollouts of 100 calls
            self._credit, step, phase, valued
        )
        if report.unusable:
            log.warning(
                "step %d: credit=%r gave groups %s numbers that are not finite or beyond 1e15, so they are "
                "left out",
                step + 1,
                algorithm.credit,
                ", ".join(report.unusable),
            )
        attempts = {rollout.id: rollout.attempts for rollout in batch.rollouts}
        weights = {
            key: weight
            for learner in self.session.learners
            for part in mini_batches(self._part(credited, learner), self._prepare(step, phase).algorithm)
            for key, weight in algorithm.weigh(part).items()
        }
        await self.session.store.add_credited(given(valued, credited, attempts, weights))
        return credited, report

    def _credit(
        self, step: int, phase: ResolvedPhase, trajectories: Sequence[Trajectory]
    ) -> tuple[list[Trajectory], CreditReport]:
        """Assigns the credit of a step. Its tokens are the same whether or not the entropy bonus is left out,
        so that the loss keeps its scale. The bonus alone is no reason for an update before returns have
        differed, nor while it is left out."""
        credited, report = credit_batch(trajectories, phase.credit, phase.algorithm)
        if phase.algorithm.learns_from is not None:
            return credited, report
        if report.zero_variance_groups + len(report.unusable) < report.groups:
            self._first = step if self._first is None else self._first
        elif (
            self._first is None
            or step < self._first
            or not is_regularised(self._prepare(step, phase).algorithm)
        ):
            return [], replace(report, transitions=Counter())
        return credited, report

    async def update(self, step: int, phase: ResolvedPhase, credited: list[Trajectory]) -> dict[str, float]:
        """Update, replay, and publish the new weights of each policy; returns the step's metrics.

        A batch that nothing can be learnt from is skipped and counted; the batches to replay are not skipped
        with it. Raises TrainingError if several steps' own updates in a row can't be made, or if what is
        trained is not what was sampled.
        """
        learners = self.session.learners
        if len(learners) == 1 or not credited:
            return await self._learn(step, phase, credited, learners[0])
        numbers: dict[str, dict[str, float]] = {}
        for learner in learners:
            if part := self._part(credited, learner):
                numbers[learner.shown] = await self._learn(step, phase, part, learner)
            elif learner.policy is not None or sampled_by(None, credited):
                numbers[learner.shown] = {"skipped_updates": 1.0}
        for learner in learners:
            if learner.shown in numbers:
                numbers[learner.shown]["policy_version"] = float(learner.backend.policy_version)
        return joined_numbers(numbers)

    def _part(self, credited: list[Trajectory], learner: PolicyLearner) -> list[Trajectory]:
        """The part of a batch that a policy learns from. Of several policies one whose advantages are all 0
        has none."""
        if len(self.session.learners) == 1:
            return credited
        part = sampled_by(learner.policy, credited)
        return part if any(t.advantage for each in part for t in each.transitions) else []

    async def _learn(
        self, step: int, phase: ResolvedPhase, credited: list[Trajectory], learner: PolicyLearner
    ) -> dict[str, float]:
        backend, algorithm = learner.backend, phase.algorithm
        again = await self._recall(step, phase, credited)
        self.session.observers.updating(step)
        own = await self._update(step, phase, credited, learner)
        check_gap(step, own, self.session.settings.max_logprob_gap)
        replayed, numbers = await self._replay(step, phase, again, backend)
        made = replayed if "skipped_updates" in own else [credited, *replayed]
        metrics = {**value_numbers(credited), **own, **numbers}
        if not made:
            return metrics
        metrics |= self._prepare(step, phase).metrics
        if algorithm.learns_from is None:  # no policy sampled a demonstration
            metrics |= measure_staleness(itertools.chain(*made), backend.policy_version)
            metrics["staleness_bound"] = float(algorithm.staleness + algorithm.replay)
        began = time.perf_counter()
        version = await backend.publish()
        return {**metrics, "policy_version": float(version), "publish_seconds": time.perf_counter() - began}

    def _prepare(self, step: int, phase: ResolvedPhase, batch: Sequence[Trajectory] = ()) -> Prepared:
        """The batch and the phase's algorithm, as they are at this step."""
        history = [self._entropies[k] for k in sorted(self._entropies) if phase.first <= k <= step]
        return phase.algorithm.prepare(batch, history)

    async def _update(
        self, step: int, phase: ResolvedPhase, credited: list[Trajectory], learner: PolicyLearner
    ) -> dict[str, float]:
        """From the step's own batch. `skipped_updates` says that none was made, `failed_updates` that the
        backend could not."""
        if not credited:
            self.session.observers.note(
                f"step {step + 1}: all rollouts of every task got the same reward; nothing to learn"
            )
            return {"skipped_updates": 1.0}
        try:
            ready = self._prepare(step, phase, credited)
            if not ready.algorithm.weigh(ready.batch):
                self.session.observers.note(f"step {step + 1}: no call carries loss; nothing to learn")
                return {"skipped_updates": 1.0}
            metrics = await learner.backend.update(Batch(step, ready.batch), ready.algorithm)
        except TrainingError as problem:
            self._failed[learner.policy] += 1
            of = "" if learner.policy is None else f" of policy {learner.policy!r}"
            log.warning("step %d: update%s skipped: %s", step + 1, of, problem)
            if self._failed[learner.policy] >= MOST_SKIPPED:
                raise
            return {"skipped_updates": 1.0, "failed_updates": 1.0}
        self._failed[learner.policy] = 0
        return metrics

    async def _replay(
        self, step: int, phase: ResolvedPhase, batches: Sequence[list[Trajectory]], backend: Backend
    ) -> tuple[list[list[Trajectory]], dict[str, float]]:
        """(the batches that were replayed, the means of their metrics); `replay/skipped` counts the rest."""
        made: list[list[Trajectory]] = []
        metrics: list[dict[str, float]] = []
        for batch in batches:
            ready = self._prepare(step, phase, batch)
            if not carries_loss(batch, ready.algorithm):
                continue
            try:
                again = Batch(step, ready.batch)
                metrics.append(await backend.update(again, ready.algorithm))
                made.append(batch)
            except TrainingError as problem:
                log.warning("step %d: a batch was not replayed: %s", step + 1, problem)
        numbers = {
            f"replay/{name}": fmean(each[name] for each in metrics) for name in next(iter(metrics), ())
        }
        return made, numbers | ({"replay/skipped": float(len(batches) - len(made))} if batches else {})

    async def _recall(
        self, step: int, phase: ResolvedPhase, credited: list[Trajectory]
    ) -> list[list[Trajectory]]:
        """The batches that a step trains on again: of the last steps of its phase, the latest first.

        What this process does not remember, after a resume, is read from the store and credited by the same
        pure functions, which gives the same. The step's own batch is kept for later ones.
        """
        oldest = max(phase.first, step - phase.algorithm.replay)
        self._batches = {k: batch for k, batch in self._batches.items() if k >= oldest}
        for k in range(oldest, step):
            if k not in self._batches:
                self._batches[k] = await self._read(k, phase)
        if phase.algorithm.replay:
            self._batches[step] = credited
        return [batch for k in range(step - 1, oldest - 1, -1) if (batch := self._batches[k])]

    async def _read(self, step: int, phase: ResolvedPhase) -> list[Trajectory]:
        """The batch of a step as it was trained on, from the store."""
        session = self.session
        rollouts = await session.store.find_rollouts(session.folder.run_id, step=step, split="train")
        planned = last_planned(rollouts)
        now = session.prompt_versions
        other = next((each for each in planned if each.prompt_versions != now), None)
        if other is not None:
            raise TrainingError(
                f"replay={phase.algorithm.replay} would train on step {step} again, whose rollouts had "
                f"prompt versions {other.prompt_versions}; the current ones are {now}: choose those again "
                "with `agentlightning models --name NAME rollback`, or start a new run"
            )
        # without the judge: its scores are stored
        lowest = session.settings.on_failure.lowest
        batch = await read_batch(session.store, session.rulebook, None, planned, lowest=lowest)
        batch = await teach(batch, phase.algorithm, session.backends)
        return self._credit(step, phase, batch.trajectories)[0]


def check_gap(step: int, metrics: Mapping[str, float], most: float | None) -> None:
    """Raise TrainingError if log-probabilities as sampled and as trained are further apart than `most` nats.

    None: `MOST_GAP`, by the number format.
    """
    gap = metrics.get("logprob_gap_mean")
    limit = MOST_GAP[metrics.get("half_precision", 0.0) > 0] if most is None else most
    if gap is None or gap <= limit:  # not a number is beyond
        return
    raise TrainingError(
        f"step {step + 1}: {describe_gap(metrics)}. The limit is {limit:g} (max_logprob_gap). The update was "
        f"not published; the last checkpoint is from before it. {GAP_CAUSES[0].upper()}{GAP_CAUSES[1:]}"
    )


def given(
    valued: Iterable[Trajectory],
    credited: Iterable[Trajectory],
    attempts: Mapping[str, int],
    weights: Mapping[Key, float],
) -> list[Credited]:
    """Returns the credit of the rollouts' transitions; without those that have neither advantage nor
    value."""
    advantages = {t.key: t.advantage for each in credited for t in each.transitions}
    return [
        Credited(
            rollout_id=t.rollout_id,
            attempt=attempts[t.rollout_id],
            call_id=t.call_id,
            choice=t.choice,
            advantage=advantages.get(t.key),
            value=t.value,
            weight=weights.get(t.key, 0.0),
        )
        for each in valued
        for t in each.transitions
        if t.rollout_id in attempts and (advantages.get(t.key) is not None or t.value is not None)
    ]


async def add_values(
    trajectories: Sequence[Trajectory], algorithm: Algorithm, backend: Backend
) -> list[Trajectory]:
    """The trajectories with the critic's values; as they are if the algorithm has no critic."""
    if algorithm.critic is None:
        return list(trajectories)
    values = await backend.values(trajectories)
    return [
        replace(each, transitions=tuple(replace(t, value=values.get(t.key)) for t in each.transitions))
        for each in trajectories
    ]


def value_numbers(credited: Sequence[Trajectory]) -> dict[str, float]:
    """`value_mean`, and `explained_variance` = 1 - var(target - value) / var(target): 1 for a critic that
    knows, 0 for one that gives the same value everywhere.

    Without targets there is no number, and no explained variance where targets hardly differ.
    """
    pairs = [
        (t.target, t.value)
        for each in credited
        for t in each.transitions
        if t.target is not None and t.value is not None
    ]
    if not pairs:
        return {}
    numbers = {"value_mean": fmean(value for _, value in pairs)}
    spread = pvariance(target for target, _ in pairs)
    if spread > SPREAD**2:
        left = pvariance(target - value for target, value in pairs)
        numbers["explained_variance"] = 1 - left / spread
    return numbers


def measure_staleness(trajectories: Iterable[Trajectory], version: int) -> dict[str, float]:
    """Mean and largest staleness of the transitions that carry loss: by how many updates the weights that
    sampled them are behind `version`, which is updated. Empty if no version is known."""
    ages = [
        version - t.policy_version
        for trajectory in trajectories
        for t in trajectory.transitions
        if t.trained and t.advantage is not None and t.policy_version is not None
    ]
    return {"staleness_mean": fmean(ages), "staleness_max": float(max(ages))} if ages else {}
