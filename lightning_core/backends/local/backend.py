"""The local backend: one process in which a transformers model is served, improved and saved."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch, TensorChange, check_loss
from lightning_core.backends.chat.folder import check_folder
from lightning_core.backends.chat.upstream import ChatUpstream
from lightning_core.backends.local.checkpoint import CRITIC, MOMENTS, Checkpoints
from lightning_core.backends.local.critic import LocalCritic
from lightning_core.backends.local.engine import Engine
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer, OptimizerOptions
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.preflight import outline
from lightning_core.backends.local.tuning import Tuning, tune
from lightning_core.backends.local.versions import (
    Content,
    EngineSettings,
    LocalVersion,
    Speed,
    compare_versions,
    export_version,
    make_engine,
    open_version,
)
from lightning_core.backends.lora import LoraOptions
from lightning_core.backends.preflight import Outline
from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range
from lightning_core.types import Demonstration, Key, Trajectory

T = TypeVar("T")
DTYPES = ("auto", "float32", "bfloat16")
SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval while a backend runs. The engine takes the interpreter lock some hundred
times a step and waits for up to one interval each time. Beside a thread that computes in Python without
pause it made 140 to 1,600 tokens per second at the default of 5 ms, 2,000 at 1 ms, up to 3,000 at 0.2 ms."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a started backend consists of."""

    policy: Policy
    tuning: Tuning
    engine: Engine
    upstream: ChatUpstream
    optimizer: Optimizer
    critic: LocalCritic
    checkpoints: Checkpoints

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """What a checkpoint holds beside the policy's weights, by the name of its file."""
        critic = self.critic.state()
        return {MOMENTS: self.optimizer.descent.moments(), **({CRITIC: critic} if critic else {})}


def build_parts(
    source: str,
    options: OptimizerOptions,
    *,
    lora: LoraOptions | None,
    seed: int,
    context: int | None,
    device: str,
    dtype: str,
    threads: int | None,
    max_batch: int,
) -> Parts:
    """Load the model and measure what suits this machine. To be called in the optimizer's own thread, whose
    number of threads it sets."""
    model = load_model(source, context=context, device=device)
    # what serves is plain, without LoRA's layers
    serving = copy.deepcopy(model.network) if lora else model.network
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # LoRA's start is random
        policy = Policy(model, lora)
    tuning = tune(policy, serving, threads=threads, dtype=dtype)
    torch.set_num_threads(tuning.train_threads)  # of this worker thread only
    engine = make_engine(model, serving, tuning.decode_threads, tuning.decode_dtype, max_batch)
    return Parts(
        policy=policy,
        tuning=tuning,
        engine=engine,
        upstream=ChatUpstream(model.chat, engine, seed=seed),
        optimizer=Optimizer(policy, options, source=source, bfloat16=tuning.train_bfloat16),
        critic=LocalCritic(policy, options, bfloat16=tuning.train_bfloat16),
        checkpoints=Checkpoints(policy),
    )


class LocalBackend:
    """Serves and trains a transformers causal LM in this process (`backends.base.Backend`).

    The engine answers from its own copy of the weights, so it goes on while an update is made; the price is
    memory for the weights once more. Requests wait only while `publish` changes that copy.
    """

    name = "local"

    def __init__(
        self,
        model: str | Path,
        *,
        learning_rate: float | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        warmup_steps: int = 3,
        max_grad_norm: float = 1.0,
        lora: LoraOptions | None = None,
        max_batch: int = 64,
        context: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        pack_tokens: int = 2048,
        merge: bool = True,
        seed: int = 0,
    ) -> None:
        """`model` is a transformers folder, a name on the hub, or "tiny" for the one this package ships.

        `dtype` is the number format of the engine and of training's forward pass (weights under training are
        float32); `threads` is for both. Both are measured at start by default. Raises ModelError or
        ConfigError.
        """
        folder = check_folder(model)
        if dtype not in DTYPES:
            raise ConfigError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
        check_range("max_batch", max_batch, least=1, whole=True)
        for option, value, least in (("threads", threads, 1), ("context", context, 2)):
            if value is not None:
                check_range(option, value, least=least, whole=True)
        self.policy_version = 0
        self.model = str(model)
        self._lora = lora
        self._options = OptimizerOptions(
            learning_rate=learning_rate,
            betas=betas,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            max_grad_norm=max_grad_norm,
            pack_tokens=pack_tokens,
            merge=merge,
        )
        self._build = partial(
            build_parts,
            self.model,
            self._options,
            lora=lora,
            seed=seed,
            context=context,
            device=device,
            dtype=dtype,
            threads=threads,
            max_batch=max_batch,
        )
        name = folder.name if folder.exists() else self.model
        self._engines = EngineSettings(name, context, device, dtype, threads, max_batch)
        self._speed: Speed | None = None
        """Of the engines of single versions, once one is known."""
        self._parts: Parts | None = None
        self._worker = ThreadPoolExecutor(1, "lightning-optimizer")
        self._updates = 0
        self._switch_seconds: float | None = None
        """The interpreter's switch interval as it was before an engine ran; None: it is that."""

    def __repr__(self) -> str:
        rate = self._options.learning_rate
        return f"LocalBackend({self.model!r}, learning_rate={rate!r}, lora={self._lora!r})"

    @property
    def upstream(self) -> ChatUpstream:
        return self._started.upstream

    @property
    def engine(self) -> Engine:
        """The engine, for its counters."""
        return self._started.engine

    @property
    def tuning(self) -> Tuning:
        """The threads and number formats that were chosen."""
        return self._started.tuning

    @property
    def learning_rate(self) -> float:
        """The rate after warm-up."""
        return self._started.optimizer.learning_rate

    @property
    def _started(self) -> Parts:
        if self._parts is None:
            raise ConfigError("the local backend is not started; await backend.start() first")
        return self._parts

    def check(self, algorithm: Algorithm) -> None:
        """Any algorithm with a loss can be trained here."""
        check_loss(algorithm, "the local backend has")

    def outline(self, algorithms: Sequence[Algorithm]) -> Outline:
        """What a run would be; loads nothing but the model's configuration."""
        return outline(self.model, self._options, self._engines, self._lora, algorithms)

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """(prompt ids, completion ids) in the model's own chat template."""
        return self._started.upstream.encode(demonstration)

    async def set_reference(self, folder: Path) -> None:
        """The reference is from now on the policy in `folder`, read when an algorithm asks for it."""
        self._started.optimizer.set_reference(str(folder))

    async def start(self) -> None:
        """Load the model, measure, and start serving."""
        if self._parts is None:
            self._parts = await self._work(self._build)
            self._parts.engine.start()
            self._switch_quickly()

    async def close(self) -> None:
        """Stop serving; requests under way end with an error."""
        if self._parts is not None:
            await asyncio.to_thread(self._parts.engine.close)
        if self._switch_seconds is not None:
            sys.setswitchinterval(self._switch_seconds)
            self._switch_seconds = None
        self._worker.shutdown()
        # as new: the object may be started again, from its model
        self._worker = ThreadPoolExecutor(1, "lightning-optimizer")
        self._parts, self.policy_version, self._updates = None, 0, 0

    async def open_engine(self, source: str, version: int) -> LocalVersion:
        """An engine for one version, which needs no optimizer: the backend need not be started."""
        if self._parts is not None:
            self._speed = self._parts.tuning.decode_threads, self._parts.tuning.decode_dtype
        self._switch_quickly()
        opened = await open_version(self._content(source), version, self._engines, self._speed)
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
        return Content(source, self.model)

    async def values(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The critic's values; the first call makes it."""
        parts = self._started
        return await self._work(lambda: parts.critic.values(trajectories))

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """One update; requests are answered by the published weights meanwhile.

        Raises TrainingError, with the weights as they were, if it can't be made.
        """
        parts = self._started
        metrics = await self._work(lambda: _update(parts, batch, algorithm))
        self._updates += 1
        return metrics

    async def publish(self) -> int:
        """Answer with the updated weights, once the replies under way have ended; returns their version."""
        await self._publish(self.policy_version + 1)
        return self.policy_version

    async def save(self, folder: Path) -> None:
        """Write a checkpoint; see `checkpoint`. Raises ModelError if the disk won't take it."""
        parts = self._started
        state = {
            "policy_version": self.policy_version,
            "updates": self._updates,
            "optimizer_steps": parts.optimizer.descent.steps,
            "model": self.model,
            "context": parts.policy.model.context,
            "sampling": parts.upstream.sampling_state(),
            "critic_steps": parts.critic.steps,
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
            await self._hold()
            tensors, state = await self._work(lambda: parts.checkpoints.load(Path(folder)))
            parts.optimizer.descent.load(tensors[MOMENTS], state["optimizer_steps"])
            parts.critic.load(tensors.get(CRITIC, {}), state.get("critic_steps"))
            parts.upstream.load_sampling_state(state["sampling"])
            self._updates = state["updates"]
            await self._publish(state["policy_version"])
        finally:
            parts.engine.release()

    async def _hold(self) -> None:
        await asyncio.wrap_future(self._started.engine.hold())

    async def _publish(self, policy_version: int) -> None:
        parts = self._started
        try:
            await self._hold()
            weights = await self._work(parts.policy.serving_weights)
            await asyncio.wrap_future(parts.engine.refresh(weights, policy_version))
            self.policy_version = policy_version
        finally:
            parts.engine.release()

    async def _work(self, work: Callable[[], T]) -> T:
        """Run in the optimizer's own thread, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _update(parts: Parts, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
    """Critic and policy, both or neither."""
    with parts.critic.fitting(batch.trajectories, algorithm) as fitted:
        return {**fitted, **parts.optimizer.update(batch.trajectories, algorithm)}
