"""Losses against those of TRL's trainers, as installed (constraints-peers.txt).

First compared with TRL 1.16.0. A trainer's loss is a method that runs the model first; here it is called on a
bare object that holds the method's settings and gives log-probabilities in place of a model.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest

trl = pytest.importorskip("trl", reason="TRL lives in an environment of its own: make peers")

import torch
from accelerate import Accelerator
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from lightning_core.algorithms.corrections import Truncated
from lightning_core.algorithms.grpo import GRPO
from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.algorithms.rloo import RLOO
from tests.peers.padded import Padded, assert_same_gradient, assert_same_loss, make_batch

SEEDS = range(8)
CONSTANT = 40


def trainer(batch: Padded, algorithm: PolicyGradient, **settings: object) -> SimpleNamespace:
    """What TRL's `_compute_loss` reads of its trainer."""
    return SimpleNamespace(
        **{
            "_get_per_token_logps_and_entropies": lambda *_, **__: (batch.logprobs, -batch.old, None),
            "accelerator": Accelerator(cpu=True),
            "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
            "model": SimpleNamespace(training=True),
            "_metrics": {"train": defaultdict(list)},
            "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "importance_sampling_level": "token",
            "beta": algorithm.kl,
            "epsilon_low": algorithm.clip_low,
            "epsilon_high": algorithm.clip_high,
            "use_vllm": algorithm.correction is not None,
            "vllm_importance_sampling_correction": True,
            "current_gradient_accumulation_steps": 1,
            "max_completion_length": CONSTANT,
            "_entropy_bonus_enabled": False,
            **settings,
        }
    )


def inputs(batch: Padded, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    nothing = torch.zeros(len(batch.mask), 0)
    return {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": torch.zeros_like(batch.mask),
        "completion_mask": batch.mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference,
        "num_items_in_batch": batch.mask.sum(),
        **more,
    }


KINDS = {
    "grpo": {"aggregation": "sequence"},
    "dapo": {"aggregation": "token"},
    "dr_grpo": {"aggregation": "constant", "constant": CONSTANT},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_grpo_dapo_and_dr_grpo_agree(kind, kl, seed):
    batch = make_batch(seed)
    algorithm = GRPO(group_size=3, tasks_per_step=2, correction=None, kl=kl, **KINDS[kind])
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, loss_type=kind), None, inputs(batch))
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("apart", "low", "high"), [(0.5, 0.2, 0.28), (1e-3, 3e-4, 4e-4)])
def test_gspo_agrees(apart, low, high, seed):
    batch = make_batch(seed, apart=apart)
    algorithm = GRPO(ratio="sequence", aggregation="sequence", correction=None, clip_low=low, clip_high=high)
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, **settings), None, inputs(batch))
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_agrees_without_a_bound_below(seed):
    batch = make_batch(seed)
    algorithm = GRPO(ratio="weight", clip_low=1.0, correction=None)
    # their bound is that of the ratio itself
    settings = {"loss_type": "cispo", "epsilon_high": 1 + algorithm.clip_high}
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, **settings), None, inputs(batch))
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_importance_sampling_agrees(seed):
    batch = make_batch(seed)
    algorithm = GRPO(correction=Truncated(1.5), epochs=2)
    # theirs keeps the log-probabilities when the update began as the old ones, and weighs by a ratio to those
    # that were sampled
    given = inputs(
        batch,
        old_per_token_logps=batch.proximal,
        importance_sampling_ratio=torch.exp(batch.proximal - batch.old).clamp(max=1.5),
    )
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, loss_type="dapo"), None, given)
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_on_policy_rloo_s_gradient_agrees(seed):
    # theirs sums a reply's log-probabilities and takes the mean over the rows, so the constant is 1
    batch = make_batch(seed, apart=0.0)
    algorithm = RLOO(group_size=3, tasks_per_step=2, aggregation="constant", constant=1, correction=None)
    given = inputs(batch, old_logps=(batch.old * batch.mask).sum(1))
    theirs = RLOOTrainer._compute_loss(trainer(batch, algorithm), None, given)
    assert_same_gradient(batch, algorithm, theirs)
    # the default weighs the same tokens alike: the gradient is the same but for rows / tokens
    assert_same_gradient(batch, RLOO(), theirs, factor=float(batch.mask.sum()) / len(batch.mask))
