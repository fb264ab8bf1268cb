"""The local backend: one process in which a transformers model is served, improved and saved."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import torch

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch, check_loss
from lightning_core.backends.local.checkpoint import CRITIC, MOMENTS, Checkpoints, forget_moments
from lightning_core.backends.local.critic import LocalCritic
from lightning_core.backends.local.engine import Engine
from lightning_core.backends.local.exactness import Exactness
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy, share_weights
from lightning_core.backends.local.preflight import plan_run
from lightning_core.backends.local.serving import Serving, TorchServing
from lightning_core.backends.local.tuning import tune_decoding, tune_training
from lightning_core.backends.local.versions import (
    LocalSettings,
    LocalVersion,
    Speed,
    make_engine,
    open_version,
)
from lightning_core.backends.preflight import RunPlan
from lightning_core.backends.serving.upstream import ChatUpstream
from lightning_core.backends.settings import PolicyOptions
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sizes import TensorChange
from lightning_core.backends.weights.sources import check_folder, find_source
from lightning_core.backends.weights.versions import Content, compare_versions, export_version
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ConfigError, TrainingError, UnsupportedError
from lightning_core.records.types import Demonstration, Key, Trajectory

log = logging.getLogger(__name__)

T = TypeVar("T")
SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval while a backend runs. The engine takes the interpreter lock some hundred
times a step and waits for up to one interval each time. Beside a thread that computes in Python without
pause it made 140 to 1,600 tokens per second at the default of 5 ms, 2,000 at 1 ms, up to 3,000 at 0.2 ms."""


@dataclass(frozen=True, slots=True)
class BackendParts:
    """The parts of a started backend."""

    policy: Policy
    speed: Speed
    serving: Serving
    optimizer: Optimizer
    critic: LocalCritic
    checkpoints: Checkpoints
    threads: int
    """Threads of an update."""

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Returns the contents of a checkpoint beside the policy's weights, by the name of the file."""
        critic = self.critic.state()
        return {MOMENTS: self.optimizer.descent.moments(), **({CRITIC: critic} if critic else {})}


class LocalBackend(LocalSettings):
    """Serves and trains a transformers causal LM in this process (`backends.base.Backend`).

    The engine answers from its own copy of the weights, so it goes on while an update is made; the price is
    memory for the weights once more. Requests wait only while `publish` changes that copy. With
    `engine="vllm"` on a GPU they wait from `update` on, unless `sleep=False`.
    """

    name: ClassVar[str] = "local"

    def __post_init__(self) -> None:
        """Raise ModelError or ConfigError for what can't be meant."""
        check_folder(self.model)
        super().__post_init__()
        self.model = str(self.model)
        self._source = _from_anywhere(self.model)
        """The model as it is found from any working directory: an app may change that."""
        self.policy_version = 0
        self._speed: Speed | None = None
        """Speed of the engines of single versions, once one is known."""
        self._opening = asyncio.Lock()
        """One version is opened at a time: the first one's speed is measured undisturbed and serves all."""
        self._parts: BackendParts | None = None
        self._worker = ThreadPoolExecutor(1, "lightning-optimizer")
        self._first: LocalBackend | None = None
        """The backend of the run's own policy, if this one is of a further policy."""
        self._switch_seconds: float | None = None
        """The interpreter's switch interval as it was before an engine ran; None: it is that."""

    def __repr__(self) -> str:
        return f"LocalBackend({self.model!r}, learning_rate={self.learning_rate!r}, lora={self.lora!r})"

    @property
    def upstream(self) -> ChatUpstream:
        return self._started.serving.upstream

    @property
    def sampler(self) -> Engine:
        """The engine in this process, for its counters. Raises ConfigError where another program samples."""
        serving = self._started.serving
        if not isinstance(serving, TorchServing):
            raise ConfigError(
                f"engine={self.engine!r} samples in a process of its own, which has no counters here"
            )
        return serving.engine

    @property
    def _started(self) -> BackendParts:
        if self._parts is None:
            raise ConfigError("the local backend is not started; await backend.start() first")
        return self._parts

    def check(self, algorithm: Algorithm) -> None:
        """Any algorithm with a loss can be trained here."""
        check_loss(algorithm, "the local backend has")
        if algorithm.staleness and self.sleeps:
            raise UnsupportedError(
                f"staleness={algorithm.staleness} lets rollouts go on while weights are trained, and vLLM "
                "frees its memory meanwhile; give sleep=False if both fit into memory, or staleness=0"
            )

    def another(self, policy: PolicyOptions) -> LocalBackend:
        """A backend for a further policy. Engine and optimizer are its own, and so are all weights that are
        trained; LoRA's frozen base is shared, if both have LoRA on the same model. Raises UnsupportedError
        where vLLM samples."""
        if self.engine != "torch":
            raise UnsupportedError(
                f"policies={{...}} with engine={self.engine!r}: that server answers with one policy; leave "
                'policies out, or give engine="torch"'
            )
        made = replace(self, **policy.changes)
        made.seed, made._first = self.seed, self
        return made

    def plan_run(self, algorithms: Sequence[Algorithm]) -> RunPlan:
        """Returns the plan of a run; loads only the model's configuration."""
        return plan_run(self, algorithms, shared=self._shares_base)

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """(prompt ids, completion ids) in the model's own chat template."""
        return self._started.serving.upstream.encode(demonstration)

    def encode_prompt(self, request: ChatRequest) -> list[int]:
        """Token ids of a request's prompt, in the model's own chat template."""
        return self._started.serving.upstream.encode_prompt(request)

    async def set_reference(self, folder: Path) -> None:
        """The reference is from now on the policy in `folder`, read when an algorithm asks for it."""
        self._started.optimizer.set_reference(str(folder))

    async def start(self) -> None:
        """Load the model, measure, and start serving."""
        if self._parts is None:
            self._parts = parts = await self._work(self._build)
            try:
                await parts.serving.start()
            except BaseException:
                self._parts = None
                raise
            self._switch_quickly()

    @property
    def _same_model(self) -> bool:
        """Whether it is of a further policy that has the model of the run's own."""
        if self._first is None:
            return False
        own, other = (os.path.realpath(find_source(each._source)[0]) for each in (self._first, self))
        return own == other

    @property
    def _shares_base(self) -> bool:
        """Whether it trains adapters beside the frozen weights of the run's own policy."""
        first = self._first
        if first is None or first.lora is None or self.lora is None or first.in_4bit != self.in_4bit:
            return False
        return self._same_model

    def _build(self) -> BackendParts:
        """Load the model and measure what suits this machine; sets the number of threads of this thread."""
        model = load_model(str(self.model), context=self.context, device=self.device, in_4bit=self.in_4bit)
        first = self._first._started if self._first is not None and self._same_model else None
        alike = first is not None and first.policy.in_4bit == self.in_4bit
        """Whether the run's own policy began with these very weights."""
        if first is not None and self._shares_base:
            share_weights(model.network, first.policy.base)
        # what serves is plain, and LoRA's layers are put into the network itself
        check = Exactness(model.network, model.sample, model.context)
        with check.refusing("served"):
            speed = (
                first.speed
                if first is not None and alike
                else tune_decoding(model, model.network, dtype=self.dtype)
            )
        serving = self._make_serving(model, speed, check)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)  # LoRA's start is random
            policy = Policy(model, self.lora, moments=self.moment_bytes)
        bfloat16 = speed[1] == torch.bfloat16
        with check.refusing("trained"):
            threads = first.threads if first else tune_training(policy, bfloat16=bfloat16)
            torch.set_num_threads(threads)
        optimizer = Optimizer(
            policy,
            self,
            source=self._source,
            bfloat16=bfloat16,
            grammars=serving.upstream.grammars,
            adamw=self.optimizer,
        )
        check.check_training(optimizer.logprobs, speed[1])
        return BackendParts(
            policy=policy,
            speed=speed,
            serving=serving,
            optimizer=optimizer,
            critic=LocalCritic(policy, self, bfloat16=bfloat16, adamw=self.optimizer),
            checkpoints=Checkpoints(policy),
            threads=threads,
        )

    def _make_serving(self, model: Model, speed: Speed, check: Exactness) -> Serving:
        if self.engine == "torch":
            engine = make_engine(model, model.network, *speed, self.max_batch, check)
            return TorchServing(engine, ChatUpstream(model.chat, engine, seed=self.seed))
        from lightning_core.backends.local.vllm import VllmServing  # where it is installed

        return VllmServing(model, speed[1], self)

    async def close(self) -> None:
        """Stop serving; requests in flight end with an error, and an update is given up."""
        if self._parts is not None:
            self._parts.policy.closing.set()
            await self._parts.serving.close()
        if self._switch_seconds is not None:
            sys.setswitchinterval(self._switch_seconds)
            self._switch_seconds = None
        await asyncio.to_thread(self._worker.shutdown)  # the loop goes on: the run is seen to be closing
        # as new: the object may be started again, from its model
        self._worker = ThreadPoolExecutor(1, "lightning-optimizer")
        self._parts, self.policy_version = None, 0

    async def open_engine(self, source: str, version: int) -> LocalVersion:
        """An engine for one version, which needs no optimizer: the backend need not be started."""
        if self._parts is not None:
            self._speed = self._parts.speed
        self._switch_quickly()
        async with self._opening:
            opened = await open_version(self._content(source), version, self, self._speed)
            self._speed = opened.speed
        return opened

    def _switch_quickly(self) -> None:
        if self._switch_seconds is None:
            self._switch_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_seconds))

    async def export_version(self, source: str, folder: Path) -> None:
        """Write a version as a plain transformers folder."""
        await asyncio.to_thread(export_version, self._content(source), folder)

    async def compare_versions(self, before: str, after: str) -> list[TensorChange]:
        """How far each tensor moved between two versions, the farthest first."""
        return await asyncio.to_thread(compare_versions, self._content(before), self._content(after))

    def _content(self, source: str) -> Content:
        return Content(source, self._source)

    async def values(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The critic's values; the first call makes it."""
        parts = self._started
        return await self._work(lambda: parts.critic.values(trajectories))

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """One update; requests are answered by the published weights meanwhile.

        Raises TrainingError, with the weights as they were, if it can't be made.
        """
        parts = self._started
        if self.sleeps:
            await parts.serving.sleep()
        try:
            return await self._work(lambda: _update(parts, batch, algorithm, self.policy_version))
        except TrainingError:
            await parts.serving.wake()
            raise

    async def publish(self) -> int:
        """Answer with the updated weights, once the replies in flight have ended; returns their version."""
        await self._publish(self.policy_version + 1)
        return self.policy_version

    async def save(self, folder: Path) -> None:
        """Write a checkpoint; see `checkpoint`. Raises ModelError if the disk won't take it."""
        parts = self._started
        state = {
            "policy_version": self.policy_version,
            "optimizer_steps": parts.optimizer.descent.steps,
            "context": parts.policy.model.context,
            "critic_steps": parts.critic.steps,
            "load_in_4bit": self.in_4bit,
        }
        await self._work(lambda: parts.checkpoints.save(Path(folder), parts.tensors(), state))

    async def export(self, folder: Path) -> None:
        """Write a plain transformers folder, replacing an older one. Raises ModelError if the disk won't."""
        parts = self._started
        await self._work(lambda: parts.checkpoints.export(Path(folder)))

    async def load(self, folder: Path) -> None:
        """Go on exactly where `save` was called. Raises ModelError if the folder does not fit."""
        parts = self._started
        try:
            await parts.serving.hold()
            tensors, state = await self._work(lambda: parts.checkpoints.load(Path(folder)))
            if MOMENTS not in tensors:
                log.warning(
                    "checkpoint %s has no optimizer state, as its run had finished: AdamW starts without "
                    "moments. Runs with keep_checkpoints=1 keep them, and go on exactly",
                    folder,
                )
            parts.optimizer.descent.load(tensors.get(MOMENTS, {}), state["optimizer_steps"])
            parts.critic.load(tensors.get(CRITIC, {}), state.get("critic_steps"))
            await self._publish(state["policy_version"])
        finally:
            await parts.serving.release()

    @staticmethod
    def forget_optimizer(folder: Path) -> None:
        """Delete AdamW's moments from a checkpoint: two thirds of it, where all weights are trained."""
        forget_moments(folder)

    async def _publish(self, policy_version: int) -> None:
        parts = self._started
        try:
            await parts.serving.hold()
            weights = await self._work(parts.policy.serving_weights)
            await parts.serving.refresh(weights, policy_version)
            self.policy_version = policy_version
        finally:
            await parts.serving.release()

    async def _work(self, work: Callable[[], T]) -> T:
        """Run in the optimizer's own thread, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _from_anywhere(model: str) -> str:
    """A model's folder as it is found from any working directory; a model's name stays."""
    return os.path.abspath(model) if os.path.exists(model) else model


def _update(parts: BackendParts, batch: Batch, algorithm: Algorithm, version: int) -> dict[str, float]:
    """Critic and policy, both or neither."""
    with parts.critic.fitting(batch.trajectories, algorithm) as fitted:
        return {**fitted, **parts.optimizer.update(batch.trajectories, algorithm, version)}
