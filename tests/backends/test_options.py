"""Options that no update can be made with are refused at start, by name and with what they may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Critic
from lightning_core.algorithms.policy_gradient import Masked, Truncated
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.settings import LoraOptions, TrainingSettings
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.credit.discounted import Discounted
from lightning_core.credit.gae import Gae
from lightning_core.credit.relevance import Relevance
from lightning_core.credit.tabular import Tabular
from lightning_core.errors import ConfigError

NOT_FINITE = (math.nan, math.inf, -math.inf)
ADAMW: dict[str, tuple[Any, ...]] = {
    "learning_rate": (-1e-3, 0.0, 1.1, 1e30, "1e-3", True),
    "max_grad_norm": (0.0, -1.0, 1e13, 1e30),
    "warmup_steps": (-1, 1.5),
}
COUNTS = dict.fromkeys(("pack_tokens", "max_batch"), (0, -1, 1.5))
LOCAL = partial(LocalBackend, "tiny")
VERL = partial(VerlBackend, "tiny")
OPTIONS: list[tuple[Callable[..., Any], dict[str, tuple[Any, ...]]]] = [
    (LOCAL, {**ADAMW, **COUNTS, "context": (1, 0, 2.5)}),
    (
        VERL,
        {
            **ADAMW,
            **COUNTS,
            "gpus": (0, 1.5),
            "nodes": (0,),
            "gpu_memory": (0.0, 1.0),
        },
    ),
    (VERL, {"tensor_parallel": (0, 1.5), "serving_gpus": (-1, 0.5), "context": (1, 2.5)}),
    (TrainingSettings, ADAMW),
    (LoraOptions, {"rank": (0, -1, 1.5), "alpha": (0.0, -1.0, 1e7)}),
    (Critic, {"learning_rate": (0.0, -1.0, 1.1), "epochs": (0, 1.5)}),
    (
        partial(lightning.GRPO, epochs=2),
        {"clip": (0.0, 1.1, -0.1), "kl": (-0.1, 1e10), "epochs": (0, 1.5)},
    ),
    (lightning.GRPO, {"group_size": (0, 2.5), "tasks_per_step": (0, 2.5), "staleness": (-1, 0.5)}),
    (lightning.GRPO, {"replay": (-1, 0.5), "dynamic_sampling": (-1, 0.5)}),
    (lightning.GRPO, {"aggregation": (0, 1.5)}),
    (lightning.PPO, {"clip": (0.0, 1.1)}),
    (
        lightning.DPO,
        {"beta": (0.0, -0.1), "margin": (-0.1,), "group_size": (1,)},
    ),
    (lightning.SFT, {"least_return": (), "batch_size": (0,)}),
    (Truncated, {"bound": (0.9,)}),
    (Masked, {"low": (-0.1, 1.0), "high": (1.0,)}),
    (Gae, {"discount": (-0.1, 1.1), "lam": (-0.1, 1.1)}),
    (Discounted, {"discount": (-0.1, 1.1)}),
    (Tabular, {"own": (-0.1, 1.1)}),
    (Relevance, {"floor": (-0.1, 1.1), "unknown": (-0.1, 1.1)}),
    (lightning.Trainer, {"steps": (-1, 1.5), "concurrency": (0, 1.5), "checkpoint_every": (0, 1.5)}),
    (lightning.Trainer, {"evaluate_every": (0, 1.5), "keep_checkpoints": (0, 1.5), "timeout": (0.0, -1.0)}),
]
CASES = [
    (make, name, value)
    for make, options in OPTIONS
    for name, bad in options.items()
    for value in (*bad, *NOT_FINITE)
]


@pytest.mark.parametrize(("make", "name", "value"), CASES)
def test_an_option_out_of_its_range_is_refused_by_name_with_the_range(
    make: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.*(give|must) ") as refused:
        make(**{name: value})
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_an_override_of_verl_s_that_is_not_finite_is_refused(value: float) -> None:
    key = "actor_rollout_ref.actor.optim.weight_decay"
    with pytest.raises(ConfigError, match=f"overrides has {key!r}.*not finite"):
        VERL(overrides={key: value})
    with pytest.raises(
        ConfigError, match=r"overrides has 'actor_rollout_ref\.actor\.optim\.betas'.*not finite"
    ):
        VERL(overrides={"actor_rollout_ref": {"actor": {"optim": {"betas": [0.9, value]}}}})


def test_the_ends_of_the_ranges_are_accepted() -> None:
    for make in (LOCAL, VERL):
        make(learning_rate=1.0, max_grad_norm=1e12, warmup_steps=0)
    lightning.GRPO(epochs=2, clip=(1, 1e9), kl=1e9)
