"""Everything of verl: the one file that imports it.

verl's parts are used as they are: a group of its hybrid workers under Ray (training engine, link to vLLM,
checkpoint engine), its vLLM replicas, and the manager that brings weights from the one to the other. Its
trainer is not used. What is ours comes in where verl lets it: the loss (`set_loss_fn`), the masks of grammars
(`mask_outputs`), and three methods more on the worker.

Versions: from 0.9.1, whose worker layer this is written to (0.9.0 moved it, and 0.8 has another); below 0.10,
as names move between releases. `tests/verl/test_names.py` lists every name that is used.

All methods block; they belong to one thread, but for `kill`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from lightning_core.backends.verl.settings import ROOT, VerlSettings, verl_values
from lightning_core.backends.weights.folders import write_weights
from lightning_core.errors import ConfigError

VERSIONS: Final = ("0.9.1", "0.10")
"""From the first, below the second."""


def _check_version() -> None:
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise ConfigError(
            "the verl backend needs verl, which is not installed here: "
            "pip install 'agent-lightning-core[verl]'"
        ) from error
    if not Version(VERSIONS[0]) <= Version(found) < Version(VERSIONS[1]):
        raise ConfigError(
            f"verl {found} is outside what this backend is written to, {VERSIONS[0]} to below {VERSIONS[1]}: "
            f"pip install 'verl>={VERSIONS[0]},<{VERSIONS[1]}'"
        )


_check_version()  # first, as what follows is missing with it

import ray  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineManager  # noqa: E402
from verl.single_controller.base.decorator import Dispatch, register  # noqa: E402
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup  # noqa: E402
from verl.utils import tensordict_utils  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.config import CriticConfig, TrainingWorkerConfig  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker  # noqa: E402
from verl.workers.rollout.replica import get_rollout_replica_class  # noqa: E402

from lightning_core.backends.verl.configuration import make_config  # noqa: E402
from lightning_core.backends.verl.loss import mask_outputs  # noqa: E402
from lightning_core.backends.verl.ray_link import RayLink, done, give_back, kill, told  # noqa: E402
from lightning_core.backends.verl.resources import COLOCATED  # noqa: E402
from lightning_core.backends.verl.servers import Servers  # noqa: E402


class VerlWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """verl's hybrid worker, and what a controller of ours asks of it beside."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        """As verl's; log-probabilities are then taken under the grammars of the rows."""
        super().init_model()
        for trained in (self.actor, self.ref):
            if trained is not None:
                mask_outputs(trained.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def set_rate(self, rate: float) -> None:
        """The learning rate of the next optimizer step."""
        _set_rate(self.actor.engine, rate)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def export(self, folder: str) -> None:
        """Write the weights as they would be served, by the first worker; all must take part in it."""
        tensors, _ = self.actor.engine.get_per_tensor_param()
        tied = bool(getattr(self.actor.model_config.hf_config, "tie_word_embeddings", False))
        write_weights(Path(folder) if self.rank == 0 else None, tensors, tied=tied)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def forget_server(self) -> None:
        """Look for the server again: it was started again."""
        self.rollout.server_handle = None


class CriticWorker(TrainingWorker):  # type: ignore[misc]
    """verl's training worker, with a learning rate that is told."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def set_rate(self, rate: float) -> None:
        """The learning rate of the next optimizer step."""
        _set_rate(self.engine, rate)


def _set_rate(engine: Any, rate: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = rate


class Cluster:
    """Workers that train and servers that serve, under Ray."""

    def __init__(self, settings: VerlSettings, folder: Path, context: int, gpus: int) -> None:
        """`gpus` of each machine train. Raises ConfigError for settings that verl does not know."""
        self._settings = settings
        self.folder = folder
        self._gpus = gpus
        values = verl_values(settings, folder=folder, context=context, gpus=gpus)
        self._config: Any = make_config(values, settings.strategy)
        self._ray = RayLink(settings)
        self._pool: Any = None
        self._policy: Any = None
        self._reference: Any = None
        self._critic: Any = None
        self._loss: dict[str, Any] = {}
        """The loss that a group has, by the group's name."""
        self._servers: Servers | None = None

    @property
    def ranks(self) -> int:
        """Workers that each take a part of a batch."""
        return int(self._policy.world_size)

    @property
    def servers(self) -> Servers:
        """The servers, once started."""
        assert self._servers is not None
        return self._servers

    @property
    def served_name(self) -> str:
        """The model's name at the servers."""
        return str(self.folder)

    # from start to end --------------------------------------------------------------------
    def start(self) -> None:
        """Join or begin a Ray cluster, load the model on every worker, and start serving it.

        Raises BackendError if a worker or a server does not come up.
        """
        self._ray.open(self._gpus)
        with told("the training workers did not start"):
            self._pool = RayResourcePool(
                process_on_nodes=[self._gpus] * self._settings.nodes,
                use_gpu=True,
                max_colocate_count=COLOCATED,
                name_prefix=f"lightning_{uuid.uuid4().hex[:6]}",
            )
            self._policy = self._group(VerlWorker, config=self._config[ROOT], role="actor_rollout")
            self._policy.init_model()
        self._servers = Servers(
            self._policy, separate=self._settings.separate, make=self._make_replica, manage=self._manage
        )
        self._servers.start(self._replica_count())

    def stop(self) -> None:
        """End the workers and servers, and Ray if it was begun here. A second time does nothing."""
        self.kill()
        if ray.is_initialized():
            if self._servers is not None:
                self._servers.stop()
            if self._pool is not None:
                give_back(self._pool)
        self._ray.close()

    def kill(self) -> None:
        """End workers and servers, from any thread: who waits for them there gets a BackendError. Their GPUs
        stay theirs until `stop`, as who waits for something to be started on GPUs that are gone waits on."""
        if ray.is_initialized():
            if self._servers is not None:
                self._servers.kill()
            for group in (self._policy, self._reference, self._critic):
                kill(group.workers if group is not None else [])

    def _group(self, worker: type, **arguments: Any) -> Any:
        made = RayClassWithInitArgs(cls=ray.remote(worker), **arguments)
        return RayWorkerGroup(
            resource_pool=self._pool, ray_cls_with_init=made, device_name=self._settings.device
        )

    # serving ------------------------------------------------------------------------------
    def _replica_count(self) -> int:
        settings = self._settings
        serving = settings.serving_gpus * settings.nodes if settings.separate else self.ranks
        return serving // settings.tensor_parallel

    def _make_replica(self, rank: int) -> Any:
        rollout = self._config[ROOT].rollout
        return get_rollout_replica_class("vllm")(
            replica_rank=rank,
            config=rollout,
            model_config=omega_conf_to_dataclass(self._config[ROOT].model),
            gpus_per_node=rollout.n_gpus_per_node,
        )

    def _manage(self, replicas: list[Any]) -> Any:
        return CheckpointEngineManager(
            config=omega_conf_to_dataclass(self._config[ROOT].rollout.checkpoint_engine),
            actor_wg=self._policy,
            replicas=replicas,
        )

    # training -----------------------------------------------------------------------------
    def train(self, batch: Any, loss: Callable[..., Any], rate: float) -> dict[str, Any]:
        """One optimizer step over the whole batch, whose rows the ranks divide; returns verl's metrics."""
        return self._train("policy", self._policy, self._policy.update_actor, batch, loss, rate)

    def infer(self, batch: Any) -> Any:
        """(N, L_i) nested: the log-probability of each row's next token under the weights in training."""
        return self._infer(self._policy.compute_log_prob, batch)["log_probs"]

    def infer_reference(self, batch: Any, folder: Path | None = None) -> Any:
        """As `infer`, under the weights of the start; of `folder`, once one was given."""
        if self._settings.lora is not None and folder is None:
            return self._infer(self._policy.compute_log_prob, batch, no_lora_adapter=True)["log_probs"]
        if self._reference is None:
            config = self._config[ROOT].copy()
            config.model.path = str(folder or self.folder)
            config.model.lora_rank = 0
            with told("the reference policy did not start"):
                self._reference = self._group(VerlWorker, config=config, role="ref")
                self._reference.init_model()
        return self._infer(self._reference.compute_ref_log_prob, batch)["log_probs"]

    def drop_reference(self) -> None:
        """Free the reference policy; the next `infer_reference` makes another."""
        if self._reference is not None:
            kill(self._reference.workers)
            self._reference = None

    def train_critic(self, batch: Any, loss: Callable[..., Any], rate: float) -> dict[str, Any]:
        """One optimizer step of the critic."""
        group = self._critic_group()
        return self._train("critic", group, group.train_mini_batch, batch, loss, rate)

    def infer_values(self, batch: Any) -> Any:
        """(N, L_i) nested: the critic's value after each token."""
        return self._infer(self._critic_group().infer_batch, batch)["values"]

    def _critic_group(self) -> Any:
        """The critic, made when it is first needed from the weights of the start."""
        if self._critic is None:
            with told("the critic did not start"):
                self._critic = self._group(CriticWorker, config=critic_config(self._config, self.folder))
                self._critic.reset()
        return self._critic

    def _train(
        self, name: str, group: Any, step: Any, batch: Any, loss: Callable[..., Any], rate: float
    ) -> dict[str, Any]:
        tensordict_utils.assign_non_tensor(
            batch,
            calculate_entropy=False,
            distillation_only=False,
            distillation_use_topk=False,
            mini_batch_size=len(batch),
            epochs=1,
            seed=self._settings.seed,
            dataloader_kwargs={"shuffle": False},
        )
        with told("an update was not made"):
            if self._loss.get(name) != loss:
                group.set_loss_fn(loss)
                self._loss[name] = loss
            group.set_rate(rate)
            metrics: dict[str, Any] = tensordict_utils.get(done(step(batch)), "metrics")
        return metrics

    def _infer(self, step: Any, batch: Any, **more: Any) -> Any:
        tensordict_utils.assign_non_tensor(
            batch,
            calculate_entropy=False,
            compute_loss=False,
            distillation_only=False,
            distillation_use_topk=False,
            global_token_num=batch["input_ids"].offsets().diff().tolist(),
            **more,
        )
        with told("log-probabilities were not inferred"):
            return done(step(batch))

    # keeping ------------------------------------------------------------------------------
    def save(self, folder: Path) -> None:
        """Weights and optimizer state, each worker its part."""
        with told(f"no checkpoint was written to {str(folder)!r}"):
            self._policy.save_checkpoint(str(folder / "policy"))
            if self._critic is not None:
                self._critic.save_checkpoint(str(folder / "critic"))

    def load(self, folder: Path) -> None:
        """Go on from `save`."""
        with told(f"the checkpoint in {str(folder)!r} was not read"):
            self._policy.load_checkpoint(str(folder / "policy"))
            if (folder / "critic").is_dir():
                self._critic_group().load_checkpoint(str(folder / "critic"))
            elif self._critic is not None:
                kill(self._critic.workers)
                self._critic = None
                self._loss.pop("critic", None)

    def export(self, folder: Path) -> None:
        """The weights as they are served, as safetensors."""
        with told(f"the weights were not written to {str(folder)!r}"):
            self._policy.export(str(folder))


def critic_config(config: DictConfig, folder: Path) -> TrainingWorkerConfig:
    """Returns the configuration of the critic's workers: the policy's settings, and a head for values."""
    whole = config.copy()
    OmegaConf.set_struct(whole, False)
    own = OmegaConf.merge(whole, {"critic": {"model": config[ROOT].model}}).critic
    policy = config[ROOT].actor
    own.strategy = policy.strategy
    own.model.path = str(folder)
    own.model.lora_rank = 0
    # Values begin at 0, as the local backend's: the head is not in the folder, and drawn with this spread
    # (with transformers' own if it were 0).
    own.model.override_config.initializer_range = 1e-9
    if "fsdp" in own and "fsdp_config" in policy:
        own.fsdp = policy.fsdp_config
    own.optim = policy.optim
    own.use_dynamic_bsz = True
    own.ppo_max_token_len_per_gpu = policy.ppo_max_token_len_per_gpu
    own.forward_max_token_len_per_gpu = policy.ppo_max_token_len_per_gpu
    made: CriticConfig = omega_conf_to_dataclass(own)
    made.engine.use_dynamic_bsz = True
    made.engine.max_token_len_per_gpu = policy.ppo_max_token_len_per_gpu
    made.engine.infer_max_token_len_per_gpu = policy.ppo_max_token_len_per_gpu
    return TrainingWorkerConfig(
        model_type="value_model",
        model_config=made.model,
        engine_config=made.engine,
        optimizer_config=made.optim,
        checkpoint_config=made.checkpoint,
    )
