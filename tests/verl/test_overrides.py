"""Overrides that would do nothing are refused where they are given, with what to give instead."""

from __future__ import annotations

import pytest

from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.errors import ConfigError

ROOT = "actor_rollout_ref"


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        (f"{ROOT}.actor.optim.lr", "learning_rate=... and warmup_steps=... to the backend"),
        (f"{ROOT}.actor.optim.min_lr_ratio", "learning_rate="),
        (f"{ROOT}.actor.clip_ratio_high", "clip=... to the algorithm"),
        (f"{ROOT}.actor.entropy_coeff", "entropy=... to the algorithm"),
        (f"{ROOT}.actor.ppo_mini_batch_size", "mini_batch_size=..., in tasks, to the algorithm"),
        (f"{ROOT}.actor.optim.warmup_style", "schedule=Schedule"),
        (f"{ROOT}.actor.ppo_epochs", "epochs=... to the algorithm"),
        (f"{ROOT}.actor.use_kl_loss", "kl=... to the algorithm"),
        (f"{ROOT}.actor.strategy", "strategy=... to the backend"),
        (f"{ROOT}.rollout.n", "group_size=... to the algorithm"),
        (f"{ROOT}.rollout.temperature", "the app's request"),
        (f"{ROOT}.rollout.tensor_model_parallel_size", "tensor_parallel=... to the backend"),
        (f"{ROOT}.model.lora.merge", "lora=LoraOptions"),
        ("critic.optim.lr", r"PPO\(critic=Critic"),
        ("algorithm.kl_ctrl.kl_coef", r"GRPO\(kl=\.\.\.\)"),
        ("data.max_prompt_length", "context=... to the backend"),
        ("trainer.nnodes", "nodes=... to the backend"),
        ("ray_kwargs.ray_init.num_cpus", "only keys of 'actor_rollout_ref' can be reached"),
    ],
)
def test_an_override_that_does_nothing_is_refused_by_name(key, instead):
    with pytest.raises(ConfigError, match=f"overrides has '{key}', .*{instead}"):
        VerlBackend("tiny", overrides={key: 1})
    first, _, rest = key.partition(".")
    with pytest.raises(ConfigError, match=f"overrides has '{key}'"):
        VerlBackend("tiny", overrides={first: {rest: 1}})


@pytest.mark.parametrize(
    "key",
    [
        "rollout.max_num_batched_tokens",
        "rollout.engine_kwargs.vllm.swap_space",
        "rollout.enforce_eager",
        "actor.optim.weight_decay",
        "actor.fsdp_config.fsdp_size",
        "actor.ppo_max_token_len_per_gpu",
        "model.use_liger",
        "ref.fsdp_config.param_offload",
    ],
)
def test_what_reaches_a_worker_or_a_server_is_taken(key):
    assert VerlBackend("tiny", overrides={f"{ROOT}.{key}": 1}).overrides
