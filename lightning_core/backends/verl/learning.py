"""One update on a cluster: rows and a loss go to the workers, metrics come back."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_core.algorithms.base import Algorithm, Critic, last_pass, mini_batches
from lightning_core.backends.meter import Meter
from lightning_core.backends.rows import Row, make_rows, make_state_rows, report_rows, share
from lightning_core.backends.settings import default_critic_rate
from lightning_core.backends.verl.batch import BatchMemory, entry_values, to_batch
from lightning_core.backends.verl.loss import (
    AlgorithmLoss,
    LinearLoss,
    ValueLoss,
    coefficients,
    finish_metrics,
)
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.errors import BackendError, TrainingError
from lightning_core.experience.trajectories import Floats
from lightning_core.records.types import Key, Trajectory, Transition

if TYPE_CHECKING:
    from lightning_core.backends.verl.cluster import Cluster

log = logging.getLogger(__name__)


class Learner:
    """Improves the weights that a cluster trains. One update at a time."""

    def __init__(
        self, cluster: Cluster, settings: VerlSettings, parameters: int, busy: Meter | None = None
    ) -> None:
        """`busy` counts while verl has its hands on something."""
        self._cluster = cluster
        self._settings = settings
        self._parameters = parameters
        self.steps = 0
        """Optimizer steps of the policy so far."""
        self.critic_steps: int | None = None
        """Steps of the critic; None if no critic was ever needed."""
        self.reference: Path | None = None
        """Where the reference policy is, if it is not the start."""
        self._busy = busy or Meter()
        self._memory = BatchMemory()
        self._worker_seconds = 0.0
        """Seconds that verl had its hands on the last update, of all that it took."""

    @property
    def learning_rate(self) -> float:
        """The rate after warm-up."""
        return self._settings.rate(self._parameters)

    def set_reference(self, folder: Path) -> None:
        """Take the reference policy from a model folder."""
        self._cluster.drop_reference()
        self.reference = folder

    def update(
        self, trajectories: Sequence[Trajectory], algorithm: Algorithm, version: int | None = None
    ) -> dict[str, float]:
        """All epochs of one batch; returns metrics.

        `version` is that of the weights as they are: `logprob_gap_*` are of the tokens that they sampled, of
        all if it is None, before the first step. Raises TrainingError if its first step can't be made, with
        the weights as they were. If a later one can't, the epochs end there: `epochs_made` says after how
        many.
        """
        started, self._worker_seconds = time.monotonic(), 0.0
        fresh = None
        if version is not None:
            transitions = [t for each in trajectories for t in each.transitions]
            fresh = frozenset(t.key for t in transitions if t.policy_version == version)
        made = (
            make_rows(
                part,
                algorithm.weigh(part),
                units=algorithm.units(part),
                merge=self._settings.prefix_sharing,
            )
            for part in mini_batches(trajectories, algorithm)
        )
        parts = [share(rows, self._cluster.ranks) for rows in made if rows]
        if not parts:
            raise TrainingError(
                "the batch holds no trained transition with an advantage; give the groups rollouts whose "
                "rewards differ, and check `agents`"
            )
        metrics = self._epochs(parts, algorithm, fresh)
        rows = [row for part in parts for row in part]
        metrics |= self._fit(trajectories, algorithm.critic)
        report = report_rows(trajectories, rows)
        return {
            **metrics,
            "half_precision": float(self._settings.number_format != "float32"),
            "tokens": float(sum(len(row.logprobs) for row in rows)),
            **report.metrics(),
            "worker_seconds": self._worker_seconds,
            "update_seconds": time.monotonic() - started,
        }

    def _epochs(
        self, parts: list[list[Row]], algorithm: Algorithm, fresh: frozenset[Key] | None
    ) -> dict[str, float]:
        """All passes over the batch, one step from each of its parts."""
        reference = began = list[Floats | None]([None] * len(parts))
        if algorithm.needs_reference:
            reference = [self._infer(rows, self._refer) for rows in parts]
        if len(parts) > 1 or (algorithm.needs_proximal and algorithm.epochs > 1):
            began = [self._infer(rows, self._cluster.infer) for rows in parts]
        gap = gap_of(parts, began, fresh)
        proximal = began if algorithm.needs_proximal else [None] * len(parts)
        steps: list[dict[str, float]] = []
        for rows, q, referred in [*zip(parts, proximal, reference, strict=True)] * algorithm.epochs:
            units = any((row.spans["unit"] >= 0).any() for row in rows)
            step = self._by_units if units else self._by_tokens
            done = step(rows, algorithm, q if steps else None, referred, fresh)
            if not (math.isfinite(done["grad_norm"]) and math.isfinite(done["loss"])):
                self._refuse(done, len(steps))
                made = {"epochs_made": float(len(steps) // len(parts))}
                return {**last_pass(steps, len(parts)), **gap, **made}
            steps.append(done)
        return {**last_pass(steps, len(parts)), **gap}

    def _refer(self, batch: Any) -> Any:
        return self._cluster.infer_reference(batch, self.reference)

    def _by_tokens(
        self,
        rows: list[Row],
        algorithm: Algorithm,
        proximal: Floats | None,
        reference: Floats | None,
        fresh: frozenset[Key] | None,
    ) -> dict[str, float]:
        seen = of_entries(rows, fresh)
        batch = to_batch(rows, memory=self._memory, proximal=proximal, reference=reference, fresh=seen)
        reported = self._step(batch, AlgorithmLoss(algorithm))
        return {**finish_metrics(reported), **self._said(reported)}

    def _by_units(
        self,
        rows: list[Row],
        algorithm: Algorithm,
        proximal: Floats | None,
        reference: Floats | None,
        fresh: frozenset[Key] | None,
    ) -> dict[str, float]:
        """The loss is taken here, where all tokens of a unit are together."""
        logprobs = self._infer(rows, self._cluster.infer)
        seen = of_entries(rows, fresh)
        slopes, metrics = coefficients(
            algorithm, rows, logprobs, proximal=proximal, reference=reference, fresh=seen
        )
        batch = to_batch(rows, memory=self._memory, coefficients=slopes)
        reported = self._step(batch, LinearLoss())
        return {**metrics, **self._said(reported)}

    def _step(self, batch: Any, loss: Any) -> dict[str, Any]:
        rate = self._settings.rate_at(self.steps + 1, self._parameters)
        with self._at_work():
            reported = self._cluster.train(batch, loss, rate)
        self.steps += 1
        return reported

    def _said(self, reported: dict[str, Any]) -> dict[str, float]:
        """Returns verl's own metrics of a step; `mfu` is its share of the GPUs' arithmetic."""
        rate = self._settings.rate_at(self.steps, self._parameters)
        said = {"grad_norm": _number(reported["grad_norm"]), "learning_rate": rate}
        memory = "perf/max_memory_allocated_gb"
        if memory in reported and _number(reported[memory]) > 0:
            said["gpu_memory_gib"] = _number(reported[memory])
        return said

    def _refuse(self, done: dict[str, float], made: int) -> None:
        """Raise TrainingError if nothing was changed yet: verl makes no step of such a gradient with FSDP.
        Raise BackendError where it did, and the weights are lost."""
        self.steps -= 1
        told = (
            f"the gradient is not finite (norm {done['grad_norm']}, loss {done['loss']}); look for "
            "non-finite rewards or advantages, or lower the learning rate"
        )
        if self._settings.strategy == "megatron":
            raise BackendError(
                f"the weights may be lost, as Megatron makes its step of any gradient: {told}, and resume "
                "the run, which goes on from its last checkpoint"
            )
        if not made:
            raise TrainingError(f"the weights were left as they were: {told}")
        log.warning("the update ended after %d of its steps: %s", made, told)

    def _infer(self, rows: list[Row], infer: Any) -> Floats:
        """(E,) of the entries of the rows."""
        batch = to_batch(rows, memory=self._memory)
        with self._at_work():
            output = infer(batch)
        return entry_values(output, rows)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Around each call to verl."""
        began = time.monotonic()
        try:
            with self._busy:
                yield
        finally:
            self._worker_seconds += time.monotonic() - began

    # the critic ---------------------------------------------------------------------------
    def values(self, trajectories: Iterable[Trajectory]) -> dict[Key, float]:
        """V at the state of each transition of a trained agent; the first call makes the critic."""
        states = [t for trajectory in trajectories for t in trajectory.transitions if t.trained]
        if not states:
            return {}
        self.critic_steps = self.critic_steps or 0
        rows = share(make_state_rows(states, merge=self._settings.prefix_sharing), self._cluster.ranks)
        values = self._infer(rows, self._cluster.infer_values)
        keys = [key for row in rows for key in row.keys]
        return dict(zip(keys, values.tolist(), strict=True))

    def _fit(self, trajectories: Sequence[Trajectory], critic: Critic | None) -> dict[str, float]:
        """All passes over the states with a target; their losses before the first and the last step."""
        states = [t for each in trajectories for t in each.transitions if t.trained and t.target is not None]
        if critic is None or not states:
            return {}
        rows = share(make_state_rows(states, merge=self._settings.prefix_sharing), self._cluster.ranks)
        by_key = {t.key: t for t in states}
        ordered = [by_key[key] for row in rows for key in row.keys]
        passes = [self._pass(rows, ordered, critic) for _ in range(critic.epochs)]
        return {
            **passes[-1],
            "value_loss": passes[0]["value_loss"],
            "value_loss_last": passes[-1]["value_loss"],
        }

    def _pass(self, rows: list[Row], states: Sequence[Transition], critic: Critic) -> dict[str, float]:
        targets = np.array([t.target for t in states], dtype=np.float32)
        rate = critic.learning_rate or default_critic_rate(self._parameters, self._settings.lora)
        batch = to_batch(rows, memory=self._memory, targets=targets)
        with self._at_work():
            reported = self._cluster.train_critic(batch, ValueLoss(), rate)
        self.critic_steps = (self.critic_steps or 0) + 1
        norm = _number(reported["grad_norm"])
        if not math.isfinite(norm):  # the policy's step is made; verl has made none of this
            log.warning("the critic was left as it was: its gradient is not finite (norm %s)", norm)
        return {**finish_metrics(reported), "value_grad_norm": norm, "value_learning_rate": rate}


def _number(reported: Any) -> float:
    """verl gives some numbers as a list of one for each step."""
    return float(reported[-1] if isinstance(reported, list | tuple) else reported)


def of_entries(rows: Sequence[Row], fresh: frozenset[Key] | None) -> Floats | None:
    """(E,) 1 for the entries of the transitions named, 0 for all others; None for all."""
    if fresh is None:
        return None
    found = [
        np.repeat(np.array([float(key in fresh) for key in row.keys], np.float32), row.spans["count"])
        for row in rows
        if len(row.keys)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def gap_of(
    parts: Sequence[list[Row]], began: Sequence[Floats | None], fresh: frozenset[Key] | None
) -> dict[str, float]:
    """`logprob_gap_*` of all mini-batches, by the log-probabilities under the weights that began an update;
    nothing where they were not inferred."""
    known = [(rows, now) for rows, now in zip(parts, began, strict=True) if now is not None]
    if not known:
        return {}
    sampled = np.concatenate([row.logprobs for rows, _ in known for row in rows])
    trained = np.concatenate([now for _, now in known])
    seen = ~np.isnan(sampled)
    if fresh is not None:
        marked = [of_entries(rows, fresh) for rows, _ in known]
        seen &= np.concatenate([each for each in marked if each is not None]) > 0
    if not seen.any():
        return {}
    apart = np.abs(trained[seen] - sampled[seen])
    return {
        "sampled_logprob": float(sampled[seen].mean()),
        "trained_logprob": float(trained[seen].mean()),
        "logprob_gap_mean": float(apart.mean()),
        "logprob_gap_max": float(apart.max()),
    }
