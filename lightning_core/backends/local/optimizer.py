"""One update: packs forward and backward, clipped gradient, AdamW with warm-up.

Weights change only if loss and gradient are finite. A step then keeps the weights finite too
(`settings.TrainingSettings`), which is looked at all the same. A step is taken back where a later one fails.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_core.algorithms.base import Algorithm, Entries, last_pass, mini_batches
from lightning_core.backends.local.attention import leave_plans, takes_plans
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.packing import (
    Tensors,
    entry_logprobs,
    pass_tokens,
    recompute_layers,
    to_tensors,
)
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.teaching import add_teachers
from lightning_core.backends.serving.constraints import Grammars
from lightning_core.backends.settings import BETAS, TrainingSettings
from lightning_core.backends.weights.fourbit import library
from lightning_core.errors import BackendError, TrainingError
from lightning_core.experience.trajectories import Pack, make_packs, report_merge, trained_transitions
from lightning_core.records.types import Key, Trajectory

logger = logging.getLogger(__name__)
LEAST_TOKENS = 256
"""Tokens of a pass that no update goes below where memory runs out."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Parameters and AdamW's state at one moment."""

    weights: list[torch.Tensor]
    moments: dict[str, torch.Tensor]
    steps: int


class Descent:
    """Steps down the gradient that stands in the parameters' `grad`."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        options: TrainingSettings,
        *,
        scheduled: bool = True,
        adamw: str = "adamw",
    ) -> None:
        """`scheduled`: whether the settings' schedule is meant; else there is the warm-up alone. `adamw`: as
        `LocalSettings.optimizer`."""
        self.parameters = list(parameters)
        self._options = (
            options
            if scheduled
            else TrainingSettings(
                warmup_steps=options.warmup_steps,
                max_grad_norm=options.max_grad_norm,
            )
        )
        self._adamw = _make_adamw(self.parameters, adamw)
        self.steps = 0
        """Steps so far."""

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def zero(self) -> None:
        """Forget the gradient."""
        self._adamw.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Bound the gradient; returns its norm before, which may be nan or infinite."""
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, self._options.max_grad_norm))

    def step(self, learning_rate: float) -> float:
        """One step, after which the gradient is forgotten; returns its rate: the share that is due."""
        rate = learning_rate * self._options.rate_share(self.steps + 1)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.steps += 1
        self.zero()
        return rate

    def check_finite(self, network: torch.nn.Module, whose: str) -> None:
        """Raise BackendError, naming the first parameter of the network, if a step broke the weights."""
        if math.isfinite(float(torch.nn.utils.get_total_norm(self.parameters))):
            return
        broken = [name for name, value in network.named_parameters() if not value.isfinite().all()]
        if not broken:  # their squares are too large, and no more
            return
        raise BackendError(
            f"the {whose} weights are not finite after optimizer step {self.steps}, though loss and gradient "
            f"were: {len(broken)} parameters, {broken[0]!r} the first. They are not published or saved; "
            "resume the run, which goes on from its last checkpoint, with a lower learning rate"
        )

    def moments(self) -> dict[str, torch.Tensor]:
        """AdamW's state, flat: with weights and `steps` it is all that an exact continuation needs."""
        return {  # bitsandbytes has one table of codes, and a file takes no tensor under two names
            f"{index}.{name}": value.clone() if name.startswith("qmap") else torch.as_tensor(value)
            for index, parameter in enumerate(self.parameters)
            for name, value in self._adamw.state.get(parameter, {}).items()
        }

    def load(self, moments: dict[str, torch.Tensor], steps: int) -> None:
        """Go on from `moments()` and `steps`."""
        self._adamw.state.clear()
        for key, value in moments.items():
            index, _, name = key.partition(".")
            parameter = self.parameters[int(index)]
            # bitsandbytes counts its steps in a plain number
            counted = name == "step" and not value.is_floating_point()
            kept = int(value) if counted else value.to(parameter.device, copy=True)
            self._adamw.state[parameter][name] = kept
        self.steps = steps

    def snapshot(self) -> Snapshot:
        """A copy of everything a step changes, in main memory."""
        weights = [_kept(p.detach()) for p in self.parameters]
        moments = {name: _kept(value) for name, value in self.moments().items()}
        return Snapshot(weights, moments, self.steps)

    @torch.no_grad()
    def restore(self, before: Snapshot) -> None:
        """Make everything as it was."""
        for parameter, weight in zip(self.parameters, before.weights, strict=True):
            parameter.copy_(weight)
        self.zero()
        self.load(before.moments, before.steps)


def _make_adamw(parameters: list[torch.nn.Parameter], adamw: str) -> torch.optim.Optimizer:
    """Raises ConfigError where bitsandbytes is needed and not installed."""
    if adamw == "adamw":
        return torch.optim.AdamW(parameters, betas=BETAS, weight_decay=0.0, fused=True)
    made: torch.optim.Optimizer = library().optim.AdamW8bit(parameters, betas=BETAS, weight_decay=0.0)
    return made


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)


class Gap:
    """How far recorded log-probabilities are from those that training computes for the same tokens."""

    def __init__(self) -> None:
        self._sampled = self._trained = self._apart = self._most = 0.0
        self._count = 0

    def add(self, sampled: torch.Tensor, trained: torch.Tensor) -> None:
        """(E,) each, of some of the tokens."""
        if not len(sampled):
            return
        apart = (trained.detach() - sampled).abs()
        self._sampled += float(sampled.sum())
        self._trained += float(trained.detach().sum())
        self._apart += float(apart.sum())
        self._most = max(self._most, float(apart.max()))
        self._count += len(sampled)

    def metrics(self) -> dict[str, float]:
        """`logprob_gap_mean` and `logprob_gap_max`, in nats, and the means that are apart."""
        if not self._count:
            return {}
        return {
            "sampled_logprob": self._sampled / self._count,
            "trained_logprob": self._trained / self._count,
            "logprob_gap_mean": self._apart / self._count,
            "logprob_gap_max": self._most,
        }


class Optimizer:
    """Improves a `Policy`. Not thread-safe: one update at a time."""

    def __init__(
        self,
        policy: Policy,
        options: TrainingSettings,
        *,
        source: str,
        bfloat16: bool = False,
        grammars: Grammars | None = None,
        adamw: str = "adamw",
    ) -> None:
        """`source` is the model folder, from which the reference weights are read if an algorithm asks;
        `grammars` are the model's own, made here if they are not given."""
        self._policy, self._options, self._source, self._bfloat16 = policy, options, source, bfloat16
        chat = policy.model.chat
        self._grammars = grammars or Grammars(chat.tokenizer, chat.vocabulary)
        self.learning_rate = options.learning_rate or policy.default_learning_rate()
        self.descent = Descent(policy.parameters, options, adamw=adamw)
        self._reference: torch.nn.Module | None = None
        self._referred = False
        """Whether the reference is another than the start."""
        self.pass_tokens = pass_tokens(options.pack_tokens, policy.base.device)
        """Fewer once memory has run out."""
        self.recomputes = False
        """Whether every pass computes its layers again, since memory has run out."""

    def set_reference(self, source: str) -> None:
        """Take the reference weights from another model folder."""
        self._policy.copies -= self._reference is not None
        self._source, self._reference, self._referred = source, None, True

    def update(
        self, trajectories: tuple[Trajectory, ...], algorithm: Algorithm, version: int | None = None
    ) -> dict[str, float]:
        """All epochs of one batch; returns metrics. Where memory runs out, passes are smaller from then on.

        `version` is that of the weights as they are. `logprob_gap_*` are of the tokens that they sampled,
        of all if it is None, before the first step. Raises TrainingError with everything as it was before,
        BackendError if the weights are lost.
        """
        while True:
            try:
                return self._update(trajectories, algorithm, version)
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error):
                    raise
                if not self._may_spare():
                    raise TrainingError(
                        f"memory ran out in a pass of {self.pass_tokens:,} tokens, which are few "
                        "already; train with lora=LoraOptions(), give a shorter context=, or take a "
                        f"smaller model. The weights are as they were. torch said: {error}"
                    ) from None
            self.descent.zero()  # outside of `except`, which keeps the tensors of the failed pass
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _may_spare(self) -> bool:
        """Take less memory from now on; False if there is no such way left."""
        if not self.recomputes:
            self.recomputes = True
            logger.warning(
                "memory ran out in an update; its layers are computed again for their gradient now"
            )
            return True
        if self.pass_tokens < 2 * LEAST_TOKENS:
            return False
        self.pass_tokens //= 2
        logger.warning("memory ran out in an update; passes have %d tokens now", self.pass_tokens)
        return True

    def _update(
        self, trajectories: tuple[Trajectory, ...], algorithm: Algorithm, version: int | None
    ) -> dict[str, float]:
        started = time.monotonic()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        fresh = fresh_keys(trajectories, version)
        trajectories, taught = add_teachers(trajectories, algorithm, self.score)
        made = (
            self.packs(part, algorithm.weigh(part), algorithm.units(part))
            for part in mini_batches(trajectories, algorithm)
        )
        parts = [packs for packs in made if packs]
        if not parts:
            raise TrainingError(
                "the batch holds no trained transition with an advantage; give the groups rollouts whose "
                "rewards differ, and check `agents`"
            )
        before, began = None, list[list[torch.Tensor] | None]([None] * len(parts))
        if algorithm.epochs * len(parts) > 1:
            before = self.descent.snapshot()
            if algorithm.needs_proximal or len(parts) > 1:
                began = [self._logprobs(packs) for packs in parts]
        proximal = began if algorithm.needs_proximal else [None] * len(parts)
        steps: list[dict[str, float]] = []
        try:
            for _ in range(algorithm.epochs):
                steps += [
                    self._step(packs, algorithm, q, fresh) for packs, q in zip(parts, proximal, strict=True)
                ]
        except BaseException:  # memory that ran out, too
            if before is not None:
                self.descent.restore(before)
            raise
        packs = [pack for part in parts for pack in part]
        metrics = last_pass(steps, len(parts)) | self._gap(parts, began, fresh)
        metrics["half_precision"] = float(self._bfloat16)
        if self._device.type == "cuda":
            metrics["gpu_memory_gib"] = torch.cuda.max_memory_allocated(self._device) / (1 << 30)
        metrics["update_seconds"] = time.monotonic() - started
        metrics["tokens"] = float(sum(len(pack.targets) for pack in packs))
        return {**metrics, **taught, **report_merge(trajectories, packs).metrics()}

    @property
    def network(self) -> torch.nn.Module:
        """The policy's, with what is trained of it."""
        return self._policy.network

    def packs(
        self, trajectories: Sequence[Trajectory], weights: Mapping[Key, float], units: Mapping[Key, int]
    ) -> list[Pack]:
        return make_packs(
            trajectories,
            weights,
            pack_tokens=self.pass_tokens,
            units=units,
            merge=self._options.prefix_sharing,
            branches=self._policy.shares_branches,
        )

    def logprobs(self, trajectories: tuple[Trajectory, ...]) -> list[list[float]]:
        """The present policy's log-probability of each sampled token, for each trained transition in turn."""
        return list(self.score(trajectories)[0].values())

    def score(self, trajectories: tuple[Trajectory, ...]) -> tuple[dict[Key, list[float]], int]:
        """The same by transition, and the tokens that went through the network."""
        found: dict[Key, list[float]] = {t.key: [] for t in trained_transitions(trajectories)}
        packs = self.packs(trajectories, dict.fromkeys(found, 1.0), {})
        for pack, logprobs in zip(packs, self._logprobs(packs), strict=True):
            for index, logprob in zip(pack.sequences.tolist(), logprobs.tolist(), strict=True):
                found[pack.keys[index]].append(logprob)
        return found, sum(pack.passed for pack in packs)

    def _gap(
        self, parts: list[list[Pack]], began: list[list[torch.Tensor] | None], fresh: frozenset[Key] | None
    ) -> dict[str, float]:
        """Returns the gap of all mini-batches, by the log-probabilities under the weights that began the
        update."""
        gap = Gap()
        for packs, logprobs in zip(parts, began, strict=True):
            for pack, present in zip(packs, logprobs or (), strict=logprobs is not None):
                recorded = torch.from_numpy(pack.logprobs)
                seen = _seen(pack, fresh)
                gap.add(recorded[seen], present.cpu()[seen])
        return gap.metrics()

    def _step(
        self,
        packs: list[Pack],
        algorithm: Algorithm,
        proximal: list[torch.Tensor] | None,
        fresh: frozenset[Key] | None,
    ) -> dict[str, float]:
        """One optimizer step from all of a batch, or of a mini-batch."""
        metrics = self.accumulate(packs, algorithm, proximal, fresh)
        norm = self.descent.clip()
        if not math.isfinite(norm) or not math.isfinite(metrics["loss"]):
            self.descent.zero()
            raise TrainingError(
                f"the gradient is not finite (norm {norm}, loss {metrics['loss']}), so the weights were left "
                "as they were; look for non-finite rewards or advantages, or lower the learning rate"
            )
        rate = self.descent.step(self.learning_rate)
        self.descent.check_finite(self._policy.network, "policy's")
        return {**metrics, "grad_norm": norm, "learning_rate": rate}

    def accumulate(
        self,
        packs: list[Pack],
        algorithm: Algorithm,
        proximal: list[torch.Tensor] | None = None,
        fresh: frozenset[Key] | None = None,
    ) -> dict[str, float]:
        """The gradient of the whole batch in the parameters' `grad`; returns the loss and its metrics.

        `proximal`: each pack's logprobs (E,) when the update began; None while no step was made since, or if
        the algorithm needs none.
        `sampled_entropy` is minus the mean recorded logprob, an estimate of the entropy of what was sampled.
        `logprob_gap_*` is how far the recorded logprobs of `fresh` transitions, or of all, are from those of
        this forward pass. Of demonstrations, which have none recorded, there is neither.
        """
        self.descent.zero()
        sums: dict[str, float] = defaultdict(float)
        gap, old, count = Gap(), 0.0, 0
        for place, pack in enumerate(packs):
            began, tensors = None if proximal is None else proximal[place], self._tensors(pack)
            again = self.recomputes or self._policy.must_recompute(tensors.plan, bfloat16=self._bfloat16)
            recompute_layers(self._policy.network, again)
            entries, loss, metrics = self._loss(tensors, algorithm, began)
            torch.autograd.backward(loss)
            for name, value in {"loss": loss, **metrics}.items():
                sums[name] += float(value.detach())
            recorded = ~entries.old_logprobs.isnan()
            old, count = old + float(entries.old_logprobs[recorded].sum()), count + int(recorded.sum())
            seen = _seen(pack, fresh).to(recorded.device)
            gap.add(entries.old_logprobs[seen], entries.logprobs[seen])
        return {**sums, **({"sampled_entropy": -old / count} if count else {}), **gap.metrics()}

    def _loss(
        self, pack: Tensors, algorithm: Algorithm, proximal: torch.Tensor | None
    ) -> tuple[Entries, torch.Tensor, dict[str, torch.Tensor]]:
        reference = self._reference_logprobs(pack) if algorithm.needs_reference else None
        needed = algorithm.needs_proximal
        logprobs = self._forward(pack)
        entries = Entries(
            logprobs=logprobs,
            old_logprobs=pack.logprobs,
            proximal_logprobs=logprobs.detach() if needed and proximal is None else proximal,
            advantages=pack.advantages,
            weights=pack.weights,
            sequences=pack.sequences,
            units=pack.units,
            ref_logprobs=reference,
            teacher_logprobs=pack.teacher_logprobs if algorithm.needs_teacher else None,
        )
        loss, metrics = algorithm.loss(entries)
        return entries, loss, metrics

    def _tensors(self, pack: Pack) -> Tensors:
        self._policy.check_open()
        return to_tensors(pack, self._policy.base, self._grammars)

    def _forward(self, pack: Tensors, network: torch.nn.Module | None = None) -> torch.Tensor:
        """Runs the policy, or another network in the same number format: log-probabilities that are
        subtracted must be rounded alike."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            return entry_logprobs(self._policy.network if network is None else network, pack)

    @torch.no_grad()
    def _logprobs(self, packs: list[Pack]) -> list[torch.Tensor]:
        """(E,) of each pack under the present weights."""
        return [self._forward(self._tensors(pack)) for pack in packs]

    @torch.no_grad()
    def _reference_logprobs(self, pack: Tensors) -> torch.Tensor:
        if self._policy.lora is not None and not self._referred:
            with self._policy.frozen_start() as network:
                return self._forward(pack, network)
        if self._reference is None:
            model = self._policy.model
            self._reference = load_model(
                self._source, context=model.context, device=str(self._device)
            ).network
            if not takes_plans(self._policy.base):  # it runs the policy's packs
                leave_plans(self._reference)
            self._policy.copies += 1
        return self._forward(pack, self._reference)

    @property
    def _device(self) -> torch.device:
        return self.descent.device


def fresh_keys(trajectories: Sequence[Trajectory], version: int | None) -> frozenset[Key] | None:
    """The transitions that the weights of a version sampled; None for any version."""
    if version is None:
        return None
    return frozenset(t.key for each in trajectories for t in each.transitions if t.policy_version == version)


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: a GPU's, or this machine's, for which torch has no class of its own."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def _seen(pack: Pack, fresh: frozenset[Key] | None) -> torch.Tensor:
    """(E,) whether an entry counts in the gap."""
    recorded = torch.from_numpy(~np.isnan(pack.logprobs))
    if fresh is None:
        return recorded
    of_keys = np.array([key in fresh for key in pack.keys], dtype=bool)
    return recorded & torch.from_numpy(of_keys[pack.sequences])
