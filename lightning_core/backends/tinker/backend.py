"""The tinker backend: a training service samples and trains, the gateway and the algorithms stay here.

Requests wait from an update on until its weights are published. A service may keep one copy of the adapters
that it trains and samples from (SkyRL's JAX engine does): a reply in between would be sampled from weights
that no version names, and an older version that is sampled would overwrite those under training.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch, check_loss
from lightning_core.backends.meter import Meter
from lightning_core.backends.preflight import RunPlan
from lightning_core.backends.serving.upstream import ChatModel
from lightning_core.backends.settings import default_learning_rate
from lightning_core.backends.tinker.learning import TinkerLearner
from lightning_core.backends.tinker.losses import find_loss
from lightning_core.backends.tinker.service import Service
from lightning_core.backends.tinker.serving import TinkerEngine, TinkerUpstream
from lightning_core.backends.tinker.settings import TinkerSettings
from lightning_core.backends.tinker.tokenizer import check_tokenizer
from lightning_core.backends.weights.folders import (
    ADAPTER,
    ADAPTER_CONFIG,
    STATE,
    read_state,
    recover,
    replacing,
)
from lightning_core.backends.weights.sizes import measure
from lightning_core.backends.weights.sources import (
    check_folder,
    find_source,
    find_stop_ids,
    load_config,
    load_tokenizer,
)
from lightning_core.errors import BackendError, ConfigError, ModelError, TrainingError, UnsupportedError
from lightning_core.records.types import Demonstration

T = TypeVar("T")
COSTS: Final = ("service_prompt_tokens", "service_sampled_tokens", "service_trained_tokens")
WRITTEN: Final = frozenset(("policy_version", "optimizer_steps", "service", "path", "rank", *COSTS))
"""Keys that a checkpoint's state must have."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a started backend."""

    service: Service
    learner: TinkerLearner
    engine: TinkerEngine
    upstream: TinkerUpstream


class TinkerBackend(TinkerSettings):
    """Serves and trains through a service that speaks Tinker's API (`backends.base.Backend`).

    All settings are those of `TinkerSettings`: TinkerBackend(model="Qwen/Qwen3-8B", rank=32).
    """

    name: ClassVar[str] = "tinker"

    def __post_init__(self) -> None:
        """Raise ModelError or ConfigError for what can't be meant."""
        super().__post_init__()
        check_folder(self.model)
        self.model = str(self.model)
        self.policy_version = 0
        self._parts: _Parts | None = None
        self._worker = ThreadPoolExecutor(1, "lightning-tinker")
        self._busy = Meter()
        self._ahead = False
        """Whether weights were made that are not published."""

    def __repr__(self) -> str:
        return f"TinkerBackend({self.model!r}, url={self.url!r}, rank={self.rank!r})"

    @property
    def busy_seconds(self) -> float:
        """Seconds so far in which the service had something to do for this run."""
        return self._busy.seconds

    @property
    def spent(self) -> dict[str, float]:
        """Tokens of the whole run so far, by what a service asks money for."""
        parts = self._started
        tokens = (parts.engine.prompt_tokens, parts.engine.sampled_tokens, parts.learner.trained_tokens)
        return dict(zip(COSTS, map(float, tokens), strict=True))

    @property
    def ceiling_reached(self) -> str | None:
        """Why no further step may begin: `max_service_tokens` is reached. None while one may."""
        total, most = sum(self.spent.values()), self.max_service_tokens
        if most is None or total < most:
            return None
        return (
            f"the service has read, sampled and trained {total:,.0f} tokens, and max_service_tokens is "
            f"{most:,}; to go on, resume with a higher one"
        )

    @property
    def upstream(self) -> TinkerUpstream:
        return self._started.upstream

    @property
    def _started(self) -> _Parts:
        if self._parts is None:
            raise ConfigError("the tinker backend is not started; await backend.start() first")
        return self._parts

    @property
    def served_as(self) -> str:
        """The service's name for the model."""
        if self.base_model is not None:
            return self.base_model
        folder = check_folder(self.model)
        return str(folder.absolute()) if folder.exists() else str(self.model)

    def check(self, algorithm: Algorithm) -> None:
        """Raise UnsupportedError, by name, for a loss that the service has no equal of."""
        check_loss(algorithm, "the service has")
        find_loss(algorithm)
        if algorithm.staleness:
            raise UnsupportedError(
                f"staleness={algorithm.staleness} lets rollouts go on while weights are trained, and a "
                "service of "
                "Tinker's API may sample from those very weights; leave it, or use the local or verl backend"
            )

    def plan_run(self, algorithms: Any) -> RunPlan:
        """Returns the plan of a run; the service is not asked."""
        size = measure(self.model, self.context)
        return RunPlan(
            (
                ("service", self.url or "by TINKER_BASE_URL, else Thinking Machines'"),
                ("model there", self.served_as),
                ("trained", f"LoRA of rank {self.rank}"),
                ("learning rate", f"{self._rate(size.parameters):.3g} after {self.warmup_steps} steps"),
            )
        )

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """(prompt ids, completion ids) in the model's own chat template."""
        return self._started.upstream.encode(demonstration)

    async def start(self) -> None:
        """Connect, have the service make the model, and publish its start as version 0.

        Raises ConfigError for a key or model that the service does not have, BackendError if it does not
        answer.
        """
        if self._parts is None:
            self._parts = await self._work(self._open)
            try:
                await self._publish(0)
            except BaseException:
                await self.close()
                raise

    def _open(self) -> _Parts:
        source, called = find_source(self.model)
        tokenizer = load_tokenizer(source)
        config, generation_config = load_config(source)
        stop_ids = find_stop_ids(generation_config, tokenizer)
        size = measure(self.model, self.context)
        service = Service(self.url, self.served_as, self.rank, self.seed)
        longest = size.context
        context = min(self.context or service.context or longest, service.context or longest)
        try:
            check_tokenizer(tokenizer, source, service.find_tokenizer(), service.url)
            if self.context is not None and self.context > context:
                raise ConfigError(
                    f"context={self.context:,}, but the service at {service.url} takes {context:,} tokens of "
                    f"{self.served_as!r}; give context={context} or less, or leave it out"
                )
        except BaseException:
            service.close()
            raise
        engine = TinkerEngine(stop_ids, self.max_running, self._busy)
        model = ChatModel(called, tokenizer, context, stop_ids, config.get_text_config().vocab_size, longest)
        learner = TinkerLearner(service, self.pace, self._rate(size.parameters), self.reduction)
        return _Parts(service, learner, engine, TinkerUpstream(model, engine, seed=self.seed))

    def _rate(self, parameters: int) -> float:
        return self.learning_rate or default_learning_rate(parameters, self.lora)

    async def close(self) -> None:
        """End the session; requests that wait end with an error, work under way is waited for."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.engine.close()
            await self._work(parts.service.close)
        await asyncio.to_thread(self._worker.shutdown)
        self._worker = ThreadPoolExecutor(1, "lightning-tinker")
        self.policy_version, self._ahead = 0, False

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """One update; requests wait from here on until `publish`.

        Raises TrainingError, with the weights as they were, if the batch can't be trained on, BackendError
        if the service fails.
        """
        parts = self._started
        await asyncio.to_thread(parts.engine.hold)
        try:
            metrics = await self._busily(
                lambda: parts.learner.update(batch.trajectories, algorithm, self.policy_version)
            )
        except TrainingError:
            if not self._ahead:
                await self._publish(self.policy_version)
            raise
        self._ahead = True
        return metrics

    async def publish(self) -> int:
        """Answer with the updated weights; returns their version."""
        await self._publish(self.policy_version + 1)
        return self.policy_version

    async def _publish(self, version: int) -> None:
        parts = self._started
        await asyncio.to_thread(parts.engine.hold)
        sampler = await self._busily(parts.service.publish)
        self.policy_version, self._ahead = version, False
        parts.engine.release(sampler, version)

    async def save(self, folder: Path) -> None:
        """Have the service keep weights and optimizer state; the folder holds their path there, and the rest
        of what is needed to go on. Raises ModelError if the disk won't take it."""
        parts = self._started
        name = f"update-{parts.learner.steps:06}-{uuid.uuid4().hex[:8]}"
        path = await self._busily(lambda: parts.service.save(name))
        state = {
            "policy_version": self.policy_version,
            "optimizer_steps": parts.learner.steps,
            "context": parts.upstream.model.context,
            "service": parts.service.url,
            "path": path,
            "rank": self.rank,
            **{name: int(count) for name, count in self.spent.items()},
        }
        await asyncio.to_thread(_write_state, Path(folder), state)

    async def load(self, folder: Path) -> None:
        """Go on where `save` was called. Raises ModelError if the folder or the service no longer has it."""
        parts = self._started
        state = await asyncio.to_thread(_read_state, Path(folder), self.rank)
        await asyncio.to_thread(parts.engine.hold)
        try:
            await self._busily(lambda: parts.service.load(state["path"]))
        except BackendError as error:
            raise ModelError(
                f"can't go on from checkpoint {str(folder)!r}, {state['path']} of the service at "
                f"{state['service']}: {error}"
            ) from error
        parts.learner.steps = state["optimizer_steps"]
        parts.learner.trained_tokens = state["service_trained_tokens"]
        parts.engine.prompt_tokens = state["service_prompt_tokens"]
        parts.engine.sampled_tokens = state["service_sampled_tokens"]
        await self._publish(state["policy_version"])

    async def export(self, folder: Path) -> None:
        """Write the policy: LoRA merged where the model's weights are on this machine, else the adapters
        alone, in PEFT's format. Raises ModelError if that can't be done."""
        parts = self._started
        await self._busily(lambda: _export(parts.service, str(self.model), Path(folder)))

    async def _busily(self, work: Callable[[], T]) -> T:
        def counted() -> T:
            with self._busy:
                return work()

        return await self._work(counted)

    async def _work(self, work: Callable[[], T]) -> T:
        """Run in the backend's own thread, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


# on disk ----------------------------------------------------------------------------------
def _write_state(folder: Path, state: dict[str, Any]) -> None:
    with replacing(folder) as partial:
        (partial / STATE).write_text(json.dumps(state, indent=2) + "\n")


def _read_state(folder: Path, rank: int) -> dict[str, Any]:
    """The state of a checkpoint. Raises ModelError if it is none of this backend's, or of another rank."""
    recover(folder)
    state = read_state(folder)
    if not state.keys() >= WRITTEN:
        raise ModelError(
            f"checkpoint {str(folder)!r} was not written by the tinker backend; resume it with its own"
        )
    if state["rank"] != rank:
        raise ModelError(
            f"checkpoint {str(folder)!r} has adapters of rank {state['rank']}, this run of rank {rank}; give "
            f"rank={state['rank']}"
        )
    return state


def _export(service: Service, model: str, folder: Path) -> None:
    import tempfile

    from lightning_core.backends.weights.versions import Content, export_version

    source = check_folder(model)
    with tempfile.TemporaryDirectory() as name:
        adapter = Path(name) / "model"
        adapter.mkdir()
        service.download(f"export-{uuid.uuid4().hex[:8]}", adapter)
        _name_targets(adapter, str(source.absolute()) if source.exists() else model)
        if any(source.glob("*.safetensors")):
            export_version(Content(name, str(source)), folder)
            return
        with replacing(folder) as partial:
            for file in adapter.iterdir():
                (partial / file.name).write_bytes(file.read_bytes())


def _name_targets(adapter: Path, base: str) -> None:
    """Let the adapters' configuration say which layers they are of, and of what model: some services leave
    the layers out, and name a path of their own."""
    from safetensors import safe_open

    path = adapter / ADAPTER_CONFIG
    config = json.loads(path.read_text())
    with safe_open(adapter / ADAPTER, framework="pt") as file:
        targets = sorted({key.split(".lora_")[0].rpartition(".")[2] for key in file.keys()})  # noqa: SIM118
    if not config.get("target_modules"):
        config["target_modules"] = targets
    path.write_text(json.dumps({**config, "base_model_name_or_path": base}, indent=2) + "\n")
