"""Losses, advantages and corrections against verl's own functions, as installed (requirements-verl.txt).

First compared with verl 0.9.1. Where a convention differs, the test says by which factor, and nothing else.
"""

from __future__ import annotations

import math
import random

import pytest

verl = pytest.importorskip("verl", reason="verl lives in an environment of its own: make peers")

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

from lightning_core.algorithms.losses import k1, k2, k3, value_loss
from lightning_core.algorithms.policy_gradient import (
    GRPO,
    PPO,
    RLOO,
    Masked,
    PolicyGradient,
    ReinforcePP,
    Truncated,
)
from lightning_core.credit.base import assign
from lightning_core.credit.gae import Gae
from lightning_core.credit.whole import uniform
from lightning_core.records.types import Trajectory, Transition
from tests.peers.padded import TOLERANCE, Padded, assert_same_loss, make_batch, to_rollouts

SEEDS = range(8)
CONSTANT = 40
MODES = {
    "token": "token-mean",
    "sequence": "seq-mean-token-mean",
    "rollout": "seq-mean-token-mean",
    CONSTANT: "seq-mean-token-sum-norm",
}
"""Their names of `aggregation`."""


def options(aggregation: str | int) -> dict[str, object]:
    """Six rows: two tasks of three rollouts."""
    return {"group_size": 3, "tasks_per_step": 2, "aggregation": aggregation}


def actor(algorithm: PolicyGradient) -> ActorConfig:
    """Their options; the second clip of dual-clip PPO is always there, and far away if not asked for."""
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=algorithm.clip_low,
        clip_ratio_high=algorithm.clip_high,
        clip_ratio_c=algorithm.dual_clip or 1e9,
        global_batch_info={"loss_scale_factor": CONSTANT} if algorithm.aggregation == CONSTANT else {},
    )


def their_loss(
    name: str,
    batch: Padded,
    algorithm: PolicyGradient,
    anchor: torch.Tensor,
    trust: torch.Tensor | None = None,
) -> torch.Tensor:
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=anchor,
        log_prob=batch.logprobs,
        advantages=batch.advantages.unsqueeze(1).expand_as(batch.mask),
        response_mask=batch.mask,
        loss_agg_mode=MODES[algorithm.aggregation],
        config=actor(algorithm),
        rollout_is_weights=trust,
    )
    return loss


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("aggregation", MODES)
@pytest.mark.parametrize(("ratio", "name"), [("token", "vanilla"), ("sequence", "gspo"), ("weight", "cispo")])
def test_the_clipped_losses_agree_under_every_aggregation(ratio, name, aggregation, seed):
    batch = make_batch(seed)
    algorithm = GRPO(entropy=0, ratio=ratio, correction=None, **options(aggregation))
    assert_same_loss(batch, algorithm, their_loss(name, batch, algorithm, batch.old))


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_agrees_at_the_bounds_of_its_paper(seed):
    batch = make_batch(seed, apart=1e-3)
    algorithm = GRPO(entropy=0, ratio="sequence", clip=(3e-4, 4e-4), correction=None, **options("sequence"))
    assert_same_loss(batch, algorithm, their_loss("gspo", batch, algorithm, batch.old))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("correction", "threshold"), [(Truncated(1.5), 1.5), (Masked(0.5, 2.0), "0.5_2.0")], ids=["tis", "icepop"]
)
def test_corrections_agree_and_so_does_the_decoupled_loss_they_make(correction, threshold, seed):
    batch = make_batch(seed)
    weights, _ = compute_rollout_correction_weights(
        batch.proximal - batch.old, batch.mask, rollout_is="token", rollout_is_threshold=threshold
    )
    ours = correction.weigh(batch.proximal, batch.old) * batch.mask
    torch.testing.assert_close(ours, weights, rtol=TOLERANCE, atol=0)
    algorithm = GRPO(entropy=0, correction=correction, epochs=2, **options("token"))
    assert_same_loss(batch, algorithm, their_loss("vanilla", batch, algorithm, batch.proximal, weights))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("aggregation", MODES)
def test_dual_clip_agrees(aggregation, seed):
    batch = make_batch(seed, apart=1.5)
    algorithm = GRPO(entropy=0, correction=None, clip=(0.2, 0.28, 1.5), **options(aggregation))
    assert_same_loss(batch, algorithm, their_loss("vanilla", batch, algorithm, batch.old))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_estimates_of_the_divergence_agree(seed):
    batch = make_batch(seed)
    for name, ours in (("k1", k1), ("k2", k2), ("k3", k3)):
        theirs = core_algos.kl_penalty_forward(batch.logprobs, batch.reference, name)
        torch.testing.assert_close(ours(batch.logprobs, batch.reference), theirs, rtol=TOLERANCE, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["k2", "k3"])
def test_the_divergence_from_the_reference_agrees(name, seed):
    batch = make_batch(seed)
    theirs = core_algos.kl_penalty(batch.logprobs, batch.reference, name)
    algorithm = GRPO(entropy=0, kl=(0.1, name), correction=None, **options("token"))
    penalty = core_algos.agg_loss(theirs, batch.mask, "token-mean")
    assert_same_loss(batch, algorithm, their_loss("vanilla", batch, algorithm, batch.old) + 0.1 * penalty)


def scores(seed: int) -> tuple[list[float], list[int]]:
    """Rewards of groups of three to five rollouts."""
    chance = random.Random(seed)
    groups = [group for group in range(4) for _ in range(chance.randint(3, 5))]
    return [chance.gauss(0, 1) for _ in groups], groups


def our_advantages(algorithm: PolicyGradient, rewards: list[float], groups: list[int]) -> list[float]:
    credited, _ = assign(
        to_rollouts(rewards, groups, [1] * len(groups)), uniform, algorithm.baseline, algorithm.scale
    )
    return [t.advantage for each in credited for t in each.transitions]


def padded_scores(rewards: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """(token_level_rewards, response_mask): four tokens a row, the reward at the last one."""
    mask = torch.ones(len(rewards), 4, dtype=torch.float64)
    given = torch.zeros_like(mask)
    given[:, -1] = torch.tensor(rewards, dtype=torch.float64)
    return given, mask


def agree(ours: list[float], theirs: torch.Tensor) -> None:
    """Each row's advantage is that of all its tokens."""
    expected = torch.tensor(ours, dtype=torch.float64).unsqueeze(1).expand_as(theirs)
    torch.testing.assert_close(expected, theirs, rtol=TOLERANCE, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_s_advantages_agree_but_for_the_kind_of_deviation(seed):
    rewards, groups = scores(seed)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        *padded_scores(rewards), index=np.array(groups), epsilon=0.0
    )
    # theirs is divided by the sample's deviation, ours by the population's
    ours = our_advantages(GRPO(), rewards, groups)
    sizes = [groups.count(group) for group in groups]
    agree([a * math.sqrt((n - 1) / n) for a, n in zip(ours, sizes, strict=True)], theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_dr_grpo_s_and_rloo_s_advantages_agree(seed):
    rewards, groups = scores(seed)
    given, index = padded_scores(rewards), np.array(groups)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(*given, index=index, norm_adv_by_std_in_grpo=False)
    agree(our_advantages(GRPO(scale="none"), rewards, groups), theirs)
    theirs, _ = core_algos.compute_rloo_outcome_advantage(*given, index=index)
    agree(our_advantages(RLOO(), rewards, groups), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_pp_s_advantages_agree_but_for_the_kind_of_deviation(seed):
    rewards, groups = scores(seed)
    given = padded_scores(rewards)
    tokens = given[1].numel()
    factor = math.sqrt((tokens - 1) / tokens)
    with_baseline, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(*given, index=groups)
    ours = our_advantages(ReinforcePP(group_size=2, baseline="mean"), rewards, groups)
    agree([a * factor for a in ours], with_baseline)
    without, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        *given, config=AlgoConfig(gamma=1.0)
    )
    ours = our_advantages(ReinforcePP(), rewards, list(range(len(groups))))
    agree([a * factor for a in ours], without)


def test_in_reinforce_pp_a_reward_reaches_the_calls_before_an_observation():
    # two tokens of a first call, two of an observation, two of a second call; the reward at the end
    rewards = [1.0, 0.0, 0.25, 0.5]
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]] * 4, dtype=torch.float64)
    given = torch.zeros_like(mask)
    given[:, -1] = torch.tensor(rewards)
    theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        given, mask, config=AlgoConfig(gamma=1.0)
    )
    credited, _ = assign(to_rollouts(rewards, range(4), [2] * 4), uniform, "none", "batch")
    ours = torch.tensor([[t.advantage for t in each.transitions] for each in credited], dtype=torch.float64)
    tokens = mask.sum()
    torch.testing.assert_close(
        ours * torch.sqrt((tokens - 1) / tokens), theirs[:, [0, 4]], rtol=TOLERANCE, atol=0
    )


def conversation(number: int, rewards: torch.Tensor, values: torch.Tensor) -> Trajectory:
    """Turns of one branch, each with one sampled token and one observed; the last reward is the final one."""
    turns = tuple(
        Transition(
            f"r{number}", f"c{i}", 0, "a", True, [1] * (2 * i + 1), [1], [0.0], 0, reward=reward, value=value
        )
        for i, (reward, value) in enumerate(zip([*rewards.tolist()[:-1], 0.0], values.tolist(), strict=True))
    )
    given = rewards.tolist()
    return Trajectory(f"r{number}", f"g{number}", "t", given[-1], turns, intermediate=sum(given[:-1]))


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_agrees_and_passes_over_observations(seed):
    generator = torch.Generator().manual_seed(seed)
    # rows of four turns; beside them the same with an observation token after each turn
    rewards, values = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    discount, lam = 0.9, 0.8
    mask = torch.tensor([1, 0] * 4, dtype=torch.float64).expand(5, 8)
    noise = torch.randn(5, 8, generator=generator, dtype=torch.float64) * (1 - mask)
    wide_rewards, wide_values = torch.zeros(5, 8, dtype=torch.float64), noise.clone()
    wide_rewards[:, ::2], wide_values[:, ::2] = rewards, values
    advantages, returns = core_algos.compute_gae_advantage_return(
        wide_rewards, wide_values, mask, gamma=discount, lam=lam
    )
    batch = [conversation(i, *each) for i, each in enumerate(zip(rewards, values, strict=True))]
    credited, _ = assign(batch, Gae(discount, lam), PPO().baseline, PPO().scale)
    rows = [each.transitions for each in credited]
    ours = torch.tensor([[t.advantage for t in row] for row in rows], dtype=torch.float64)
    targets = torch.tensor([[t.target for t in row] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(targets, returns[:, ::2], rtol=TOLERANCE, atol=1e-12)
    # theirs is divided by the sample's deviation, ours by the population's
    torch.testing.assert_close(ours * math.sqrt(19 / 20), advantages[:, ::2], rtol=TOLERANCE, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_of_the_values_agrees(seed):
    batch = make_batch(seed)
    theirs, _ = core_algos.compute_value_loss(
        batch.logprobs, batch.reference, batch.old, batch.mask, cliprange_value=1e9
    )
    losses = value_loss(batch.logprobs, batch.reference)
    inside = batch.mask.bool()
    torch.testing.assert_close(losses[inside].mean(), theirs, rtol=TOLERANCE, atol=0)
