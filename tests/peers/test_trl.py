"""Losses against those of TRL's trainers, as installed (requirements-peers.txt).

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
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from lightning_core.algorithms.base import Algorithm, Entries
from lightning_core.algorithms.dpo import DPO
from lightning_core.algorithms.policy_gradient import GRPO, RLOO, PolicyGradient, Truncated
from lightning_core.algorithms.sft import SFT
from tests.peers.padded import TOLERANCE, Padded, assert_same_gradient, assert_same_loss, make_batch

SEEDS = range(8)
CONSTANT = 40


def trainer(batch: Padded, algorithm: PolicyGradient, **settings: object) -> SimpleNamespace:
    """Returns the fields of its trainer that TRL's `_compute_loss` reads."""
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
            "beta": algorithm.kl_weight,
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
    "dr_grpo": {"aggregation": CONSTANT},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_grpo_dapo_and_dr_grpo_agree(kind, kl, seed):
    batch = make_batch(seed)
    algorithm = GRPO(entropy=0, group_size=3, tasks_per_step=2, correction=None, kl=kl, **KINDS[kind])
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, loss_type=kind), None, inputs(batch))
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("apart", "low", "high"), [(0.5, 0.2, 0.28), (1e-3, 3e-4, 4e-4)])
def test_gspo_agrees(apart, low, high, seed):
    batch = make_batch(seed, apart=apart)
    algorithm = GRPO(entropy=0, ratio="sequence", aggregation="sequence", correction=None, clip=(low, high))
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, **settings), None, inputs(batch))
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_agrees_without_a_bound_below(seed):
    batch = make_batch(seed)
    algorithm = GRPO(entropy=0, ratio="weight", clip=(1.0, 0.28), correction=None)
    # their bound is that of the ratio itself
    settings = {"loss_type": "cispo", "epsilon_high": 1 + algorithm.clip_high}
    theirs = GRPOTrainer._compute_loss(trainer(batch, algorithm, **settings), None, inputs(batch))
    assert_same_loss(batch, algorithm, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_importance_sampling_agrees(seed):
    batch = make_batch(seed)
    algorithm = GRPO(entropy=0, correction=Truncated(1.5), epochs=2)
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
    algorithm = RLOO(group_size=3, tasks_per_step=2, aggregation=1, correction=None)
    given = inputs(batch, old_logps=(batch.old * batch.mask).sum(1))
    theirs = RLOOTrainer._compute_loss(trainer(batch, algorithm), None, given)
    assert_same_gradient(batch, algorithm, theirs)
    # the default weighs the same tokens alike: the gradient is the same but for rows / tokens
    assert_same_gradient(batch, RLOO(), theirs, factor=float(batch.mask.sum()) / len(batch.mask))


def their_dpo_loss(batch: Padded, loss_type: str, beta: float) -> torch.Tensor:
    """The first half of the rows are the better sides, the others the worse ones, in the same order."""
    logprobs, reference = batch.logprobs * batch.mask, batch.reference * batch.mask
    zeros = torch.zeros_like(batch.mask)
    outputs = SimpleNamespace(log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    chosen, rejected = reference.sum(1).chunk(2)
    # the mask is of the whole sequence, the log-probabilities begin at its second token
    mask = torch.cat((torch.zeros(len(zeros), 1), batch.mask), dim=1).long()
    given = {
        "input_ids": torch.ones_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    trainer = SimpleNamespace(
        accelerator=Accelerator(cpu=True),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=0.0,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    loss: torch.Tensor = DPOTrainer._compute_loss(trainer, lambda **_: outputs, given, False)
    return loss


def our_loss(batch: Padded, algorithm: Algorithm, rows: int, share: float) -> torch.Tensor:
    """Over the first `rows` rows; of pairs, row i and row i + rows / 2 are one."""
    inside = batch.mask.bool().clone()
    inside[rows:] = False
    row = torch.arange(len(inside)).unsqueeze(1).expand_as(inside)[inside]
    entries = Entries(
        logprobs=batch.logprobs[inside],
        old_logprobs=batch.old[inside],
        proximal_logprobs=batch.proximal[inside],
        advantages=1.0 - 2.0 * (row >= rows // 2),
        weights=torch.full((len(row),), share, dtype=torch.float64),
        sequences=row,
        units=row % (rows // 2),
        ref_logprobs=batch.reference[inside],
    )
    return algorithm.loss(entries)[0]


def assert_equal(batch: Padded, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Values and gradients."""
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=1e-12)
    gradients = (torch.autograd.grad(loss, batch.logprobs)[0] for loss in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=TOLERANCE, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.1, 2.0])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("sigmoid", {}),
        ("sigmoid_norm", {"loss_type": "sigmoid_norm"}),
        ("ipo", {"loss_type": "ipo"}),
    ],
)
def test_dpo_agrees(theirs, ours, beta, seed):
    batch = make_batch(seed)
    pairs = len(batch.mask) // 2
    loss = our_loss(batch, DPO(beta=beta, **ours), 2 * pairs, 1 / pairs)
    assert_equal(batch, loss, their_dpo_loss(batch, theirs, beta))


@pytest.mark.parametrize("seed", SEEDS)
def test_sft_agrees(seed):
    # theirs imitates the better sides alone
    batch = make_batch(seed)
    rows = len(batch.mask) // 2
    loss = our_loss(batch, SFT(), rows, 1 / float(batch.mask[:rows].sum()))
    assert_equal(batch, loss, their_dpo_loss(batch, "sft", 1.0))
