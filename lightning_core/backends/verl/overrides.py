"""What of verl's configuration can't be overridden, because this backend does it itself.

verl's trainer, its loss, its sampling and its critic's settings are not used: a key of theirs would be taken
and do nothing. Others must be what the backend itself goes by, such as how many GPUs serve. Each is refused
with what to give in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from lightning_core.errors import ConfigError

PARTS: Final = {
    "algorithm": "give the algorithm its own options, such as GRPO(kl=...)",
    "critic": "the critic takes what is given for actor_rollout_ref; give its rate, epochs and clip as "
    "PPO(critic=Critic(...))",
    "data": "the tasks are the trainer's; give context=... to the backend",
    "trainer": "give gpus=... and nodes=... to the backend, and the rest to the trainer",
}
"""Of the whole configuration."""
INSTEAD: Final = {
    "actor.optim.lr*": "give learning_rate=... and warmup_steps=... to the backend",
    "actor.optim.*_lr*": "give learning_rate=... and warmup_steps=... to the backend",
    "actor.optim.total_training_steps": "the rate has no end; give steps=... to the trainer",
    "actor.optim.num_cycles": "after warm-up the rate is constant",
    "actor.optim.warmup_style": "after warm-up the rate is constant",
    "actor.grad_clip": "give max_grad_norm=... to the backend",
    "actor.clip_ratio*": "give clip_low=... and clip_high=... to the algorithm",
    "actor.ppo_epochs": "give epochs=... to the algorithm",
    "actor.ppo_mini_batch_size": "a step is made of a whole batch; give tasks_per_step=... to the algorithm",
    "actor.shuffle": "a step is made of a whole batch",
    "actor.data_loader_seed": "a step is made of a whole batch",
    "actor.*kl_loss*": "give kl=... to the algorithm",
    "actor.loss_*": "give aggregation=... to the algorithm",
    "actor.entropy_coeff": "the loss is the algorithm's, and none has an entropy bonus",
    "actor.calculate_*": "the loss is the algorithm's",
    "actor.policy_loss*": "the loss is the algorithm's",
    "actor.tau_*": "the loss is the algorithm's",
    "*.rollout_n": "give group_size=... to the algorithm",
    "*.strategy": "give strategy=... to the backend",
    "rollout.n": "give group_size=... to the algorithm",
    "rollout.temperature": "the app's request says how it is sampled",
    "rollout.top_[kp]": "the app's request says how it is sampled",
    "rollout.do_sample": "the app's request says how it is sampled",
    "rollout.ignore_eos": "the app's request says how it is sampled",
    "rollout.val_kwargs*": "the app's request says how it is sampled",
    "rollout.multi_turn*": "the app itself makes the calls",
    "rollout.agent*": "the app itself makes the calls",
    "rollout.prompt_length": "give context=... to the backend",
    "rollout.response_length": "give context=... to the backend",
    "rollout.max_model_len": "give context=... to the backend",
    "rollout.tensor_model_parallel_size": "give tensor_parallel=... to the backend",
    "rollout.data_parallel_size": "there are as many replicas as GPUs allow; give tensor_parallel=...",
    "rollout.pipeline_model_parallel_size": "a replica is spread by tensor_parallel=... alone",
    "rollout.nnodes": "give nodes=... and serving_gpus=... to the backend",
    "rollout.n_gpus_per_node": "give gpus=... and serving_gpus=... to the backend",
    "rollout.name": "vLLM alone serves here",
    "rollout.mode": "vLLM alone serves here",
    "rollout.free_cache_engine": "give sleep=... to the backend",
    "rollout.enable_sleep_mode": "give sleep=... to the backend",
    "model.path": "give model=... to the backend",
    "model.lora_rank": "give lora=LoraOptions(...) to the backend",
    "model.lora_alpha": "give lora=LoraOptions(...) to the backend",
    "model.target_modules": "give lora=LoraOptions(...) to the backend",
    "model.lora.*": "give lora=LoraOptions(...) to the backend",
}
"""Of the part that is used: patterns of keys in it."""


def check_overrides(overrides: Mapping[str, Any], used: str) -> None:
    """Raise ConfigError for a key that is outside the part of the configuration that is used, or that the
    backend sets by itself, and for a number that is not finite. Whether verl knows the others is told at the
    start."""
    for key, value in flat(overrides):
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"overrides has {key!r}: {number!r} is not finite; give another number")
        part, _, rest = key.partition(".")
        if part != used:
            reason = PARTS.get(part, f"nothing reads it; only keys of {used!r} can be reached")
        else:
            reason = next((why for like, why in INSTEAD.items() if fnmatchcase(rest, like)), "")
        if reason:
            raise ConfigError(f"overrides has {key!r}, which would do nothing or break the run: {reason}")


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values, also of mappings inside, as verl takes those too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
