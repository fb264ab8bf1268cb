"""The verl backend: verl's workers train, vLLM's servers answer, on one machine with GPUs or on a cluster.

The gateway speaks to the servers as it does to the local engine, and the trainer hands over the same batches.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch, check_loss
from lightning_core.backends.meter import Meter
from lightning_core.backends.preflight import RunPlan
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.backends.vllm.server import ServerOptions, VllmEngine
from lightning_core.backends.weights.folders import STATE, read_state, recover, replacing
from lightning_core.backends.weights.sizes import TensorChange, measure
from lightning_core.backends.weights.sources import check_folder, check_weights, keep_ends
from lightning_core.backends.weights.versions import Content, compare_versions, export_version
from lightning_core.errors import BackendError, ConfigError, ModelError, TrainingError, UnsupportedError
from lightning_core.gateway.engine_cache import VersionEngine
from lightning_core.records.types import Demonstration, Key, Trajectory

if TYPE_CHECKING:
    from lightning_core.backends.verl.cluster import Cluster
    from lightning_core.backends.verl.learning import Learner
    from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream

T = TypeVar("T")
log = logging.getLogger(__name__)
WATCH_SECONDS: Final = 1.0
"""Between two looks whether a server has ended."""
SERVER_SECONDS: Final = 600.0
"""Requests wait so long while no server is alive; to start one again takes minutes for a big model."""
KILL_SECONDS: Final = 1.0
"""Seconds that work under way at `close` may take to end by itself."""


@dataclass(slots=True)
class _Parts:
    """The parts of a started backend."""

    cluster: Cluster
    learner: Learner
    replicas: Replicas
    upstream: VllmUpstream
    watch: asyncio.Task[None] | None = None


class VerlBackend(VerlSettings):
    """Serves with vLLM and trains with verl, both on Ray (`backends.base.Backend`).

    All settings are those of `VerlSettings`: VerlBackend(model="Qwen/Qwen3-1.7B", gpus=8).
    """

    name: ClassVar[str] = "verl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model = str(self.model)
        self.policy_version = 0
        self._cluster: Cluster | None = None
        """From the moment that it begins to start."""
        self._parts: _Parts | None = None
        self._worker = ThreadPoolExecutor(1, "lightning-verl")
        self._busy = Meter()
        self._ahead = False
        """Whether weights were made that are not published."""
        self._asleep = False
        """Whether the servers' memory is freed, and requests wait."""
        self._checked: list[Algorithm] = []
        """Algorithms of the coming run."""

    @property
    def busy_seconds(self) -> float:
        """Seconds so far in which vLLM sampled a reply or verl had something to do."""
        return self._busy.seconds

    @property
    def upstream(self) -> VllmUpstream:
        return self._started.upstream

    @property
    def _started(self) -> _Parts:
        if self._parts is None:
            raise ConfigError("the verl backend is not started; await backend.start() first")
        return self._parts

    def check(self, algorithm: Algorithm) -> None:
        """Any algorithm with a loss can be trained here, on Megatron without a critic. The next start counts
        what it needs."""
        check_loss(algorithm, "verl's workers have")
        if algorithm.staleness and self.sleeps:
            raise UnsupportedError(
                f"staleness={algorithm.staleness} lets rollouts go on while weights are trained, and these "
                "GPUs serve and train in turn; give serving_gpus=... of their own to serve, or sleep=False "
                "if both fit into memory"
            )
        if algorithm.critic is not None and self.strategy == "megatron":
            raise UnsupportedError(
                f"algorithm {algorithm.name!r} has a critic, and the settings of a Megatron engine are not "
                "passed on to one; use strategy='fsdp2', or an algorithm without a critic, such as GRPO"
            )
        self._checked.append(algorithm)

    def plan_run(self, algorithms: Sequence[Algorithm]) -> RunPlan:
        """Returns the plan of a run; starts nothing."""
        from lightning_core.backends.verl.preflight import plan_run

        return plan_run(self, measure(self.model, self.context), algorithms)

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """(prompt ids, completion ids) in the model's own chat template."""
        return self._started.upstream.encode(demonstration)

    async def set_reference(self, folder: Path) -> None:
        """The reference is from now on the policy in `folder`."""
        learner = self._started.learner
        await self._work(lambda: learner.set_reference(folder.absolute()))

    async def start(self) -> None:
        """Start Ray, workers and servers; minutes for a big model.

        Raises ConfigError for settings or a machine that it can't be done with, BackendError if something
        does not come up.
        """
        if self._parts is None:
            try:
                self._parts = await self._work(self._open)
                await self._parts.upstream.check()
                self._parts.watch = asyncio.create_task(self._watching(self._parts))
            except BaseException:
                await self.close()
                raise

    def _open(self) -> _Parts:
        from lightning_core.backends.verl.cluster import Cluster  # first: it says if verl is missing

        # isort: split
        from lightning_core.backends.verl.learning import Learner
        from lightning_core.backends.verl.preflight import check_memory
        from lightning_core.backends.verl.resources import check_gpus, count_gpus, find_resources
        from lightning_core.backends.vllm.upstream import PER_SLOT, Replicas, VllmUpstream

        size = measure(_fetch(self.model), self.context)
        resources = find_resources(self)
        check_gpus(self, resources)
        algorithms, self._checked = self._checked, []
        self._check_attention(algorithms)
        fits = check_memory(self, size, resources, algorithms)
        if fits.holds is None:
            log.info("whether the model fits is not known: %s", fits.told)
        if fits.holds is False:
            raise ConfigError(fits.told)
        gpus = count_gpus(self, resources.counts)
        cluster = self._cluster = Cluster(self, size.folder, size.context, gpus)
        cluster.start()
        replicas = Replicas(
            cluster.servers.addresses,
            cluster.served_name,
            server_timeout=SERVER_SECONDS,
            max_running=PER_SLOT * self.max_batch,
            take_back=False,  # one that was started again has the weights of the start: see `_watching`
            busy=self._busy,
        )
        upstream = VllmUpstream(self.model, replicas, seed=self.seed, unmasked=self.unmasked)
        learner = Learner(cluster, self, size.parameters, self._busy)
        return _Parts(cluster, learner, replicas, upstream)

    def _check_attention(self, algorithms: Sequence[Algorithm]) -> None:
        if self.device == "cpu" or not self.plain_attention:
            return
        if any(algorithm.critic is not None for algorithm in algorithms):
            raise ConfigError(
                "verl loads a critic with flash attention alone, and flash-attn is not installed: install it "
                "(pip install flash-attn), or use an algorithm without a critic, such as GRPO"
            )
        log.warning("flash-attn is not installed: training uses torch's attention, on padded rows")

    async def close(self) -> None:
        """End servers, workers and Ray; requests and work under way end with an error."""
        parts, self._parts = self._parts, None
        if parts is not None:
            if parts.watch is not None:
                parts.watch.cancel()
                await asyncio.gather(parts.watch, return_exceptions=True)
            await parts.replicas.close()
        await self._end_work()
        if self._cluster is not None:  # Ray's daemons end with the thread that began them: not before this
            await self._work(self._cluster.stop)
        await asyncio.to_thread(self._worker.shutdown)
        self._cluster = None
        self._worker = ThreadPoolExecutor(1, "lightning-verl")
        self.policy_version, self._ahead, self._asleep = 0, False, False

    async def _end_work(self) -> None:
        """Returns once the backend's thread has nothing to do. What it waits for is killed; again and again,
        as a start makes more."""
        idle = asyncio.ensure_future(self._work(lambda: None))
        while not (await asyncio.wait([idle], timeout=KILL_SECONDS))[0]:
            if self._cluster is not None:
                await asyncio.to_thread(self._cluster.kill)

    async def values(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The critic's values; the first call makes it."""
        learner = self._started.learner
        return await self._work(lambda: learner.values(trajectories))

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """One update; with GPUs in turn, requests wait from here on until `publish`.

        Raises TrainingError, with the weights as they were, if it can't be made.
        """
        parts = self._started
        await self._fall_asleep()
        try:
            return await self._work(lambda: self._learn(parts, batch, algorithm))
        except TrainingError:
            await self._wake()
            raise

    def _learn(self, parts: _Parts, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """In the backend's thread: what comes next there must know already that the weights are ahead."""
        before, self._ahead = self._ahead, True
        try:
            return parts.learner.update(batch.trajectories, algorithm, self.policy_version)
        except TrainingError:  # it has changed nothing
            self._ahead = before
            raise

    async def publish(self) -> int:
        """Answer with the updated weights, once the replies in flight have ended; returns their version."""
        await self._publish(self.policy_version + 1)
        return self.policy_version

    async def save(self, folder: Path) -> None:
        """Write a checkpoint: `model/` as a transformers folder, and verl's own files to go on from."""
        parts = self._started
        state = {
            "policy_version": self.policy_version,
            "optimizer_steps": parts.learner.steps,
            "critic_steps": parts.learner.critic_steps,
            "context": parts.upstream.model.context,
        }

        def write() -> None:
            with self._busy:
                _write_checkpoint(parts, Path(folder), state)

        await self._work(write)

    async def export(self, folder: Path) -> None:
        """Write a plain transformers folder, replacing an older one. Raises ModelError if the disk won't."""
        parts = self._started

        def write() -> None:
            with self._busy:
                _export(parts, Path(folder))

        await self._work(write)

    async def load(self, folder: Path) -> None:
        """Go on where `save` was called. Raises ModelError if the folder does not fit."""
        parts = self._started
        state = await self._work(lambda: self._read(parts, Path(folder).absolute()))
        parts.learner.steps = state["optimizer_steps"]
        parts.learner.critic_steps = state["critic_steps"]
        await self._publish(state["policy_version"])

    def _read(self, parts: _Parts, folder: Path) -> dict[str, Any]:
        """Load what the workers need to go on; returns the rest."""
        state = _read_state(folder)
        self._ahead = True
        parts.cluster.load(folder / "verl")
        return state

    async def open_engine(self, source: str, version: int) -> VersionEngine:
        """A vLLM server of its own for one version, by the settings of those that serve while training; also
        of a backend that is not started. The context is the checkpoint's where the backend has none."""
        content = Content(source, str(self.model))
        options = ServerOptions(
            dtype=self.number_format,
            context=self.context or content.context,
            max_num_seqs=self.max_batch,
            gpu_memory_utilization=self.gpu_memory,
            tensor_parallel_size=self.tensor_parallel,
        )
        engine = VllmEngine(content.folder or content.source, version, options=options)
        await engine.start()
        return engine

    async def export_version(self, source: str, folder: Path) -> None:
        """Write a version as a plain transformers folder."""
        await asyncio.to_thread(export_version, Content(source, str(self.model)), folder)

    async def compare_versions(self, before: str, after: str) -> list[TensorChange]:
        """How far each tensor moved between two versions, the farthest first."""
        base = str(self.model)
        return await asyncio.to_thread(compare_versions, Content(before, base), Content(after, base))

    # servers ------------------------------------------------------------------------------
    async def _publish(self, version: int) -> None:
        parts = self._started
        try:
            if not self._asleep:
                await parts.replicas.hold()
            await self._work(lambda: self._send(parts, version))
            addresses = parts.cluster.servers.addresses
            parts.replicas.replace(addresses, version)
            self.policy_version = version
            self._ahead = self._asleep = False
        finally:
            if not self._asleep:
                await parts.replicas.release()

    def _send(self, parts: _Parts, version: int) -> None:
        parts.cluster.servers.revive()
        with self._busy:
            parts.cluster.servers.send_weights(version)

    async def _fall_asleep(self) -> None:
        if self.sleeps and not self._asleep:
            parts = self._started
            await parts.replicas.hold()
            self._asleep = True
            await self._work(lambda: self._sleep(parts))

    def _sleep(self, parts: _Parts) -> None:
        parts.cluster.servers.revive()  # one may have ended of which no request has heard
        with self._busy:
            parts.cluster.servers.sleep()

    async def _wake(self) -> None:
        """Go on with the weights as they are; those of an earlier update wait for `publish`."""
        if self._asleep and not self._ahead:
            await self._publish(self.policy_version)

    async def _watching(self, parts: _Parts) -> None:
        """Start a server again that has ended; other servers answer meanwhile, or requests wait if there is
        none. While unpublished weights are trained that is left to `publish`: it would serve them."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if parts.replicas.dead and not self._ahead and not self._asleep:
                try:
                    await self._work(lambda: self._revive(parts))
                except BackendError as problem:
                    log.error("%s", problem)

    def _revive(self, parts: _Parts) -> None:
        if self._ahead or self._asleep:
            return
        if revived := parts.cluster.servers.revive():
            parts.cluster.servers.send_weights(self.policy_version)
            log.warning("%d of vLLM's servers had ended and serve again", len(revived))
        parts.replicas.replace(parts.cluster.servers.addresses)

    async def _work(self, work: Callable[[], T]) -> T:
        """Run in the backend's own thread, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _fetch(model: str | Path) -> Path:
    """The model's folder on this machine; one on the hub is fetched. Raises ModelError."""
    folder = check_folder(model)
    if folder.exists():
        check_weights(folder)
        return folder.absolute()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        fetched = Path(snapshot_download(str(model), ignore_patterns=["*.bin", "*.pt", "*.pth"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model {str(model)!r} is no folder here and can't be had from the hub: {error}; download it "
            "where there is a network, and give its folder"
        ) from error
    check_weights(fetched)
    return fetched


# on disk ----------------------------------------------------------------------------------
def _write_checkpoint(parts: _Parts, folder: Path, state: dict[str, Any]) -> None:
    """`model/` as a transformers folder, verl's own files to go on from, and `state`."""
    with replacing(folder) as partial:
        _write_model(parts, partial / "model")
        parts.cluster.save(partial / "verl")
        (partial / STATE).write_text(json.dumps(state))


def _export(parts: _Parts, folder: Path) -> None:
    """A plain transformers folder, in place of an older one. Raises ModelError if the disk won't."""
    with replacing(folder) as partial:
        _write_model(parts, partial)


def _write_model(parts: _Parts, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in parts.cluster.folder.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
            shutil.copy(file, folder / file.name)
    keep_ends(folder, parts.upstream.model.tokenizer, parts.upstream.model.stop_ids)
    parts.cluster.export(folder)


def _read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint. Raises ModelError if it is none, or verl's own files are gone."""
    recover(folder)
    state = read_state(folder)
    if not (folder / "verl" / "policy").is_dir():
        raise ModelError(
            f"checkpoint {str(folder)!r} was not written by the verl backend, or what is needed to go on "
            "was deleted; start a new run with model= its folder `model`"
        )
    return state
