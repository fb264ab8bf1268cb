"""One update at the service: rows go there as data, log-probabilities come back, and metrics are made of
them here.

The service can't forget a gradient. So all that can be wrong with a batch is looked for before it is sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_core.algorithms.base import Algorithm, Entries, last_pass, mini_batches
from lightning_core.algorithms.entropy import with_bonus
from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.backends.rows import Row, make_rows, report_rows
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.tinker.batch import Datum, RowEntries, make_data, row_entries
from lightning_core.backends.tinker.losses import ServiceLoss, find_loss
from lightning_core.backends.tinker.service import Service
from lightning_core.backends.tinker.settings import Reduction
from lightning_core.errors import TrainingError
from lightning_core.experience.trajectories import Floats
from lightning_core.records.types import Trajectory


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one optimizer step, with R rows and E entries over all of them."""

    rows: list[Row]
    entries: list[RowEntries]
    """The loss entries of each row."""
    fresh: torch.Tensor
    """(E,) bool: sampled by the weights that begin the update."""

    def data(
        self,
        algorithm: Algorithm,
        loss: ServiceLoss,
        proximal: Sequence[Floats] | None,
        reduction: Reduction,
    ) -> list[Datum]:
        """The data for the service. `proximal` is (E,) of each row: log-probabilities when the update
        began, if the loss is to those."""
        known: list[Floats | None] = [None] * len(self.rows) if proximal is None else [*proximal]
        shaped = [_shape(r, e, algorithm, q) for r, e, q in zip(self.rows, self.entries, known, strict=True)]
        anchors = [_anchor(row, loss) for row in self.rows] if proximal is None else proximal
        return make_data(self.rows, anchors, shaped, reduction)

    def gather(self, logprobs: Sequence[Floats]) -> list[Floats]:
        """(E,) of each row, from (L,) of each datum."""
        return [values[each.parents] for values, each in zip(logprobs, self.entries, strict=True)]


class TinkerLearner:
    """Improves the weights that the service trains. One update at a time."""

    def __init__(self, service: Service, pace: TrainingSettings, rate: float, reduction: Reduction) -> None:
        self._service, self._pace, self._reduction = service, pace, reduction
        self.learning_rate = rate
        self.steps = 0
        """Optimizer steps so far."""
        self.trained_tokens = 0
        """Tokens that the service was given to train on so far, those of forward passes included."""

    def update(
        self, trajectories: Sequence[Trajectory], algorithm: Algorithm, version: int
    ) -> dict[str, float]:
        """All epochs of one batch; returns metrics. `version` is that of the weights as they are.

        Raises TrainingError, with nothing sent, for a batch that can't be trained on. Raises BackendError if
        the service fails on the way.
        """
        started = time.monotonic()
        loss = find_loss(algorithm)
        parts = [
            cut_part(part, algorithm, version)
            for part in mini_batches(trajectories, algorithm)
            if any(algorithm.weigh(part))
        ]
        parts = [part for part in parts if part.rows]
        if not parts:
            raise TrainingError(
                "the batch holds no trained transition with an advantage; give the groups rollouts whose "
                "rewards differ, and check `agents`"
            )
        _check_finite(parts, loss)
        began = [self._forward(part) if loss.proximal else None for part in parts]
        steps: list[dict[str, float]] = []
        for _ in range(algorithm.epochs):
            for part, proximal in zip(parts, began, strict=True):
                steps.append(self._step(part, algorithm, loss, proximal))
        rows = [row for part in parts for row in part.rows]
        return {
            **last_pass(steps, len(parts)),
            "tokens": float(sum(len(row.logprobs) for row in rows)),
            **report_rows(trajectories, rows).metrics(),
            "update_seconds": time.monotonic() - started,
        }

    def _forward(self, part: RowBatch) -> list[Floats]:
        """(E,) of each row under the weights as they are."""
        zeros = [np.zeros(len(row.logprobs), dtype=np.float32) for row in part.rows]
        data = make_data(part.rows, zeros, zeros, self._reduction)
        self.trained_tokens += _count(data)
        return part.gather(self._service.forward(data))

    def _step(
        self, part: RowBatch, algorithm: Algorithm, loss: ServiceLoss, proximal: list[Floats] | None
    ) -> dict[str, float]:
        """One optimizer step."""
        data = part.data(algorithm, loss, proximal, self._reduction)
        self.trained_tokens += _count(data)
        rate = self.learning_rate * self._pace.rate_share(self.steps + 1)
        mean = self._reduction == "mean"
        logprobs, measured = self._service.learn(data, loss, rate, weights=mean)
        self.steps += 1
        norm = measured.get("skyrl.ai/grad_norm")
        return {
            **_measure(part, algorithm, part.gather(logprobs), proximal),
            **({} if norm is None else {"grad_norm": norm}),
            "learning_rate": rate,
        }


def cut_part(part: Sequence[Trajectory], algorithm: Algorithm, version: int) -> RowBatch:
    """The rows of these trajectories; `version` is that of the weights as they are."""
    rows = [each for row in make_rows(part, algorithm.weigh(part)) for each in split_overlaps(row)]
    fresh_keys = {t.key for each in part for t in each.transitions if t.policy_version == version}
    fresh = [
        np.repeat([key in fresh_keys for key in row.keys], row.spans["count"]).astype(bool) for row in rows
    ]
    return RowBatch(
        rows,
        [row_entries(row) for row in rows],
        torch.from_numpy(np.concatenate(fresh or [np.empty(0, bool)])),
    )


def split_overlaps(row: Row) -> list[Row]:
    """The row, and copies of it for transitions that sampled tokens which another one had sampled there too:
    a datum has one advantage for each token. Each copy ends with its last transition."""
    firsts, counts = row.spans["first"].tolist(), row.spans["count"].tolist()
    layers: list[list[int]] = []
    for number, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        for layer in layers:
            if all(first + count <= firsts[i] or firsts[i] + counts[i] <= first for i in layer):
                layer.append(number)
                break
        else:
            layers.append([number])
    if len(layers) < 2:
        return [row]
    starts = np.concatenate([[0], np.cumsum(counts)])
    return [
        Row(
            row.tokens[: max(firsts[i] + counts[i] for i in layer) + 1],
            row.spans[layer],
            np.concatenate([row.logprobs[starts[i] : starts[i + 1]] for i in layer]),
            row.temperature,
            tuple(row.keys[i] for i in layer),
        )
        for layer in layers
    ]


def _shape(row: Row, entries: RowEntries, algorithm: Algorithm, proximal: Floats | None) -> Floats:
    """(E,) what the service is to take as advantages: with the loss weight, and all that is known
    beforehand."""
    weights = entries.weights
    if not isinstance(algorithm, PolicyGradient):  # SFT, whose loss has no advantages
        return weights
    recorded = torch.from_numpy(row.logprobs.copy())
    advantages = with_bonus(torch.from_numpy(entries.advantages), recorded, algorithm.entropy)
    if proximal is not None and algorithm.correction is not None:
        advantages = advantages * algorithm.correction.weigh(torch.from_numpy(proximal), recorded)
    shaped: Floats = advantages.numpy() * weights
    return shaped


def _anchor(row: Row, loss: ServiceLoss) -> Floats:
    """(E,) the recorded log-probabilities; zeros where they have no part, as a demonstration has none."""
    return row.logprobs if loss.recorded else np.zeros(len(row.logprobs), dtype=np.float32)


def _check_finite(parts: Sequence[RowBatch], loss: ServiceLoss) -> None:
    for part in parts:
        for row, entries in zip(part.rows, part.entries, strict=True):
            numbers = [entries.advantages, entries.weights, *([row.logprobs] if loss.recorded else [])]
            if not all(np.isfinite(each).all() for each in numbers):
                raise TrainingError(
                    f"an advantage, weight or recorded log-probability of {row.keys[0]} is not finite, so "
                    "nothing was "
                    "sent to the service; look for rewards that are not finite"
                )
            if entries.parents[0] < 0:
                raise TrainingError(f"transition {row.keys[0]} has no prompt, so it can't be trained on")


def _measure(
    part: RowBatch, algorithm: Algorithm, logprobs: list[Floats], proximal: list[Floats] | None
) -> dict[str, float]:
    """The algorithm's own loss and metrics, and how far recorded log-probabilities are from those of
    training."""

    def tensor(values: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(values))

    present = tensor(logprobs)
    recorded = tensor([row.logprobs for row in part.rows])
    entries = Entries(
        logprobs=present,
        old_logprobs=recorded,
        advantages=tensor([each.advantages for each in part.entries]),
        weights=tensor([each.weights for each in part.entries]),
        sequences=tensor([each.sequences for each in part.entries]),
        units=tensor([each.units for each in part.entries]),
        proximal_logprobs=(present if proximal is None else tensor(proximal))
        if algorithm.needs_proximal
        else None,
    )
    loss, metrics = algorithm.loss(entries)
    known = ~recorded.isnan()
    numbers = {name: float(value) for name, value in {"loss": loss, **metrics}.items()}
    if known.any():
        numbers["sampled_entropy"] = -float(recorded[known].mean())
    seen = part.fresh & known
    if seen.any():
        apart = (present - recorded)[seen].abs()
        numbers |= {
            "sampled_logprob": float(recorded[seen].mean()),
            "trained_logprob": float(present[seen].mean()),
            "logprob_gap_mean": float(apart.mean()),
            "logprob_gap_max": float(apart.max()),
        }
    return numbers


def _count(data: Sequence[Datum]) -> int:
    return sum(len(each.tokens) for each in data)
