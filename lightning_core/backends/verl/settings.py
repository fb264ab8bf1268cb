"""Settings of the verl backend, and their meaning in verl's own configuration.

A dozen settings are those that people turn. What else of verl's workers and of vLLM is used keeps its default
and can be reached by its own name through `overrides`, which the cluster checks against verl's configuration
at the start. A key that would do nothing there, or that the backend sets itself, is refused with what to give
in its place: verl's trainer, its loss, its sampling and its critic's settings are not used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from lightning_core.backends.settings import (
    BETAS,
    BackendSettings,
    LoraOptions,
    check_choice,
    default_learning_rate,
)
from lightning_core.errors import ConfigError, UnsupportedError
from lightning_core.ranges import check_range

Strategy = Literal["fsdp", "fsdp2", "megatron"]
STRATEGIES: Final = ("fsdp", "fsdp2", "megatron")
ROOT: Final = "actor_rollout_ref"


@dataclass(kw_only=True, eq=False)
class VerlSettings(BackendSettings):
    """Settings of the verl backend. More of verl's configuration is reached through `overrides`."""

    max_batch: int = 256
    gpus: int | None = None
    """GPUs of each machine that train; None: all that each of the largest `nodes` machines has, but those
    that serve."""
    nodes: int = 1
    """Machines that train."""
    address: str | None = None
    """A Ray cluster that runs already: "auto", "10.0.0.5:6379" or "ray://…". None: a new one, here."""
    serving_gpus: int = 0
    """GPUs that serve and do not train, for each machine that trains, on it or another; 0: those that train
    serve as well, in turn."""
    tensor_parallel: int = 1
    """GPUs that serve one copy of the model together."""
    strategy: Strategy = "fsdp2"
    """How the weights under training are spread over GPUs."""
    gpu_memory: float = 0.5
    """Share of each GPU's memory that serving takes."""
    sleep: bool | None = None
    """Free the engine's memory while weights are trained, so that both fit; requests wait meanwhile. None:
    where GPUs serve and train in turn."""
    offload: bool = False
    """Keep weights and optimizer state in main memory between updates."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Keys of verl's own configuration: {"actor_rollout_ref.rollout.max_num_batched_tokens": 16384}. They
    come last, so they win. What verl would not be asked for is refused (`INSTEAD`)."""

    def __post_init__(self) -> None:
        """Raise ConfigError for what can't be meant."""
        super().__post_init__()
        for name in ("gpus", "nodes", "tensor_parallel"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, least=1, whole=True)
        check_range("serving_gpus", self.serving_gpus, least=0, whole=True)
        check_range("gpu_memory", self.gpu_memory, above=0, below=1)
        check_choice("strategy", self.strategy, STRATEGIES)
        if self.serving_gpus and self.sleep:
            raise ConfigError(
                "sleep=True is for GPUs that serve and train in turn; with serving_gpus leave it"
            )
        if self.lora is not None and self.lora.load_in_4bit:
            raise UnsupportedError(
                "lora=LoraOptions(load_in_4bit=True) is for the local backend: verl holds frozen weights as "
                "they are; leave it out"
            )
        if self.strategy == "megatron" and self.lora is not None:
            raise UnsupportedError(
                "lora=... with strategy='megatron' is not passed on: verl's Megatron engine has adapters of "
                "its own kind, and all weights would be trained; use strategy='fsdp2', or leave lora"
            )
        check_overrides(self.overrides)

    @property
    def separate(self) -> bool:
        """Whether other GPUs serve than train."""
        return self.serving_gpus > 0

    @property
    def together(self) -> int:
        """GPUs of a machine that serve one copy of the model together, where others train."""
        return min(self.tensor_parallel, self.serving_gpus or self.tensor_parallel)

    @property
    def sleeps(self) -> bool:
        """Whether the engine's memory is freed while weights are trained."""
        return (not self.separate and self.device != "cpu") if self.sleep is None else self.sleep

    @property
    def unmasked(self) -> str:
        """The setting with which an update can't compute under a grammar's masks; empty if there is none."""
        if self.strategy == "megatron":
            return "strategy='megatron'"
        for key, value in flat(self.overrides):
            cut = key.endswith("ulysses_sequence_parallel_size") and value != 1
            if cut or (key.endswith("use_fused_kernels") and value):
                return f"{key}={value!r}"
        return ""

    @property
    def device(self) -> str:
        """ "cpu" where verl was told so, for tests; else "cuda"."""
        return "cpu" if os.environ.get("VERL_PLATFORM") == "cpu" else "cuda"

    @property
    def plain_attention(self) -> bool:
        """Whether FSDP computes with torch's own attention and padded rows: verl's needs flash-attn."""
        return self.strategy != "megatron" and (self.device == "cpu" or find_spec("flash_attn") is None)

    @property
    def number_format(self) -> str:
        """Number format of the engine and of the forward pass: "float32" or "bfloat16"."""
        return ("float32" if self.device == "cpu" else "bfloat16") if self.dtype == "auto" else self.dtype

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in that format."""
        return 4 if self.number_format == "float32" else 2

    def pass_tokens(self, context: int) -> int:
        """Tokens of a forward pass on each GPU."""
        return max(self.pack_tokens or 16384, context)

    def rate(self, parameters: int) -> float:
        """The learning rate after warm-up, for a model of so many parameters."""
        return self.learning_rate or default_learning_rate(parameters, self.lora)

    def rate_at(self, step: int, parameters: int) -> float:
        """The learning rate of an optimizer step, counted from 1."""
        return self.rate(parameters) * self.rate_share(step)


def verl_values(settings: VerlSettings, *, folder: Path, context: int, gpus: int) -> dict[str, Any]:
    """The settings as keys of verl's configuration, with the overrides.

    The optimizer is AdamW at a rate that is told with each update, so verl's own schedule is constant.
    """
    values: dict[str, Any] = {
        "trainer.device": settings.device,
        "trainer.n_gpus_per_node": gpus,
        "trainer.nnodes": settings.nodes,
        f"{ROOT}.model.path": str(folder),
        f"{ROOT}.actor.strategy": settings.strategy,
        f"{ROOT}.actor.use_dynamic_bsz": True,
        f"{ROOT}.actor.ppo_max_token_len_per_gpu": settings.pass_tokens(context),
        f"{ROOT}.actor.optim.lr": settings.learning_rate or 1e-6,
        f"{ROOT}.actor.optim.betas": list(BETAS),
        f"{ROOT}.actor.optim.weight_decay": 0.0,
        f"{ROOT}.actor.optim.clip_grad": settings.max_grad_norm,
        f"{ROOT}.rollout.name": "vllm",
        f"{ROOT}.rollout.seed": settings.seed,
        f"{ROOT}.rollout.load_format": "auto",
        f"{ROOT}.rollout.tensor_model_parallel_size": settings.tensor_parallel,
        f"{ROOT}.rollout.max_model_len": context,
        f"{ROOT}.rollout.max_num_seqs": settings.max_batch,
        f"{ROOT}.rollout.gpu_memory_utilization": settings.gpu_memory,
        f"{ROOT}.rollout.dtype": settings.number_format,
        f"{ROOT}.rollout.free_cache_engine": settings.sleeps,
        f"{ROOT}.rollout.enable_sleep_mode": settings.sleeps,
        f"{ROOT}.rollout.engine_kwargs.vllm.structured_outputs_config": {"backend": "guidance"},
        **_engine(settings),
        **_lora(settings.lora),
        **(_separate(settings) if settings.separate else {}),
        **(PLAIN_ATTENTION if settings.plain_attention else {}),
        **(_cpu(context, settings.tensor_parallel > 1) if settings.device == "cpu" else {}),
    }
    return {**values, **settings.overrides}


PLAIN_ATTENTION: Final[Mapping[str, Any]] = {
    f"{ROOT}.model.use_remove_padding": False,
    f"{ROOT}.model.override_config.attn_implementation": "sdpa",
}


def _engine(settings: VerlSettings) -> dict[str, Any]:
    """Returns the training engine's configuration, which FSDP and Megatron have under different names. The
    reference computes as the policy does: else they would differ where they are equal."""
    part = "megatron" if settings.strategy == "megatron" else "fsdp_config"
    float32 = settings.number_format == "float32"
    own, reference = f"{ROOT}.actor.{part}", f"{ROOT}.ref.{part}"
    values: dict[str, Any] = {
        f"{own}.param_offload": settings.offload,
        f"{own}.optimizer_offload": settings.offload,
        f"{own}.seed": settings.seed,
        f"{reference}.param_offload": settings.offload,
    }
    dtypes: dict[str, Any] = {"dtype": "float32" if float32 else "bfloat16"}
    if part != "megatron":
        values[f"{own}.model_dtype"] = "fp32"
        precision = {"param_dtype": "fp32" if float32 else "bf16", "reduce_dtype": "fp32"}
        dtypes["mixed_precision"] = precision | {"buffer_dtype": "fp32"}
    for name, value in dtypes.items():
        values |= {f"{own}.{name}": value, f"{reference}.{name}": value}
    return values


def _lora(lora: LoraOptions | None) -> dict[str, Any]:
    """vLLM gets the weights that the adapters amount to, as it does without LoRA."""
    if lora is None:
        return {}
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    return {
        f"{ROOT}.model.lora_rank": lora.rank,
        f"{ROOT}.model.lora_alpha": lora.alpha,
        f"{ROOT}.model.target_modules": targets,
        f"{ROOT}.model.lora.merge": True,
    }


def _separate(settings: VerlSettings) -> dict[str, Any]:
    """Other GPUs serve than train: weights go over the network."""
    return {
        f"{ROOT}.rollout.checkpoint_engine.backend": "nccl",
        f"{ROOT}.rollout.nnodes": settings.nodes,
        f"{ROOT}.rollout.n_gpus_per_node": settings.serving_gpus,
    }


def _cpu(context: int, spread: bool) -> dict[str, Any]:
    """Returns the settings that replace verl's and vLLM's GPU-only defaults on a CPU; `spread`: a server
    takes several processes."""
    return {
        f"{ROOT}.model.enable_gradient_checkpointing": False,
        f"{ROOT}.actor.use_torch_compile": False,
        f"{ROOT}.actor.fsdp_config.use_torch_compile": False,
        f"{ROOT}.rollout.enforce_eager": True,
        # the engine computes by itself (`backends.vllm.server`) where VLLM_ENABLE_V1_MULTIPROCESSING is 0
        f"{ROOT}.rollout.engine_kwargs.vllm.distributed_executor_backend": "mp" if spread else "uni",
        # in main memory, of which vLLM would take a large share
        f"{ROOT}.rollout.engine_kwargs.vllm.kv_cache_memory_bytes": 256 << 20,
        # a seeded request whose prompt is cut in two ends vLLM's CPU engine
        f"{ROOT}.rollout.enable_chunked_prefill": False,
        f"{ROOT}.rollout.max_num_batched_tokens": max(8192, context),
        f"{ROOT}.rollout.checkpoint_engine.update_weights_bucket_megabytes": 64,
    }


PARTS: Final = {
    "algorithm": "give the algorithm its own options, such as GRPO(kl=...)",
    "critic": "the critic takes what is given for actor_rollout_ref; give its rate and epochs as "
    "PPO(critic=Critic(...))",
    "data": "the tasks are the trainer's; give context=... to the backend",
    "trainer": "give gpus=... and nodes=... to the backend, and the rest to the trainer",
}
"""Advice for parts of the configuration that can't be set."""
INSTEAD: Final = {
    "give learning_rate=... and warmup_steps=... to the backend": "actor.optim.lr* actor.optim.*_lr*",
    "give schedule=Schedule(...) to the backend": "actor.optim.total_training_steps actor.optim.num_cycles "
    "actor.optim.warmup_style",
    "give max_grad_norm=... to the backend": "actor.grad_clip",
    "give clip=... to the algorithm": "actor.clip_ratio*",
    "give epochs=... to the algorithm": "actor.ppo_epochs",
    "give mini_batch_size=..., in tasks, to the algorithm": "actor.ppo_mini_batch_size",
    "mini-batches are made in the order of the groups": "actor.shuffle actor.data_loader_seed",
    "give kl=... to the algorithm": "actor.*kl_loss*",
    "give aggregation=... to the algorithm": "actor.loss_*",
    "give entropy=... to the algorithm": "actor.entropy_coeff",
    "the loss is the algorithm's": "actor.calculate_* actor.policy_loss* actor.tau_*",
    "give group_size=... to the algorithm": "*.rollout_n rollout.n",
    "give strategy=... to the backend": "*.strategy",
    "the app's request says how it is sampled": "rollout.temperature rollout.top_[kp] rollout.do_sample "
    "rollout.ignore_eos rollout.val_kwargs*",
    "the app itself makes the calls": "rollout.multi_turn* rollout.agent*",
    "give context=... to the backend": "rollout.prompt_length rollout.response_length rollout.max_model_len",
    "give tensor_parallel=... to the backend": "rollout.tensor_model_parallel_size",
    "there are as many replicas as GPUs allow; give tensor_parallel=...": "rollout.data_parallel_size",
    "a replica is spread by tensor_parallel=... alone": "rollout.pipeline_model_parallel_size",
    "give nodes=... and serving_gpus=... to the backend": "rollout.nnodes",
    "give gpus=... and serving_gpus=... to the backend": "rollout.n_gpus_per_node",
    "vLLM alone serves here": "rollout.name rollout.mode",
    "give sleep=... to the backend": "rollout.free_cache_engine rollout.enable_sleep_mode",
    "give model=... to the backend": "model.path",
    "give lora=LoraOptions(...) to the backend": "model.lora_rank model.lora_alpha "
    "model.target_modules model.lora.*",
}
"""Advice by patterns of keys: the setting to use in their place."""


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that is outside the part of the configuration that is used, or that the
    backend sets by itself, and for a number that is not finite. Whether verl knows the others is told at the
    start."""
    for key, value in flat(overrides):
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"overrides has {key!r}: {number!r} is not finite; give another number")
        part, _, rest = key.partition(".")
        if part != ROOT:
            reason = PARTS.get(part, f"nothing reads it; only keys of {ROOT!r} can be reached")
        else:
            likes = ((why, like) for why, each in INSTEAD.items() for like in each.split())
            reason = next((why for why, like in likes if fnmatchcase(rest, like)), "")
        if reason:
            raise ConfigError(f"overrides has {key!r}, which would do nothing or break the run: {reason}")


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values, also of mappings inside, as verl takes those too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
