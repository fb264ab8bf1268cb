"""The variants of the clipped policy gradient against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch

import lightning_core as lightning
from lightning_core.algorithms.base import Entries, credit_batch, mini_batches
from lightning_core.algorithms.policy_gradient import PolicyGradient, Truncated
from lightning_core.credit.base import assign
from lightning_core.credit.gae import Gae
from lightning_core.credit.whole import uniform
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory, Transition

LN2 = math.log(2)


def entries(logprobs, old, advantages, *, weights=None, sequences=None) -> Entries:
    size = len(logprobs)
    now = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    return Entries(
        logprobs=now,
        old_logprobs=torch.tensor(old, dtype=torch.float64),
        proximal_logprobs=now.detach(),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights or [1 / size] * size, dtype=torch.float64),
        sequences=torch.tensor(sequences or [0] * size),
        units=torch.full((size,), -1),
    )


def rollout(number: int, reward: float, *, group: str = "g", calls: int = 1, tokens: int = 1) -> Trajectory:
    steps = tuple(
        Transition(f"r{number}", f"c{i}", 0, "a", True, [1], [2] * tokens, [0.0] * tokens, 0)
        for i in range(calls)
    )
    return Trajectory(f"r{number}", group, "t", reward, steps)


def advantages(algorithm: PolicyGradient, *rollouts: Trajectory) -> dict[str, float | None]:
    credited, _ = assign(rollouts, uniform, algorithm.baseline, algorithm.scale)
    return {t.rollout_id + t.call_id: t.advantage for each in credited for t in each.transitions}


def test_the_sequence_ratio_is_the_geometric_mean_and_its_gradient_each_token_s_own():
    # sequence 0: log-ratios ln 2 and 3 ln 2, mean 2 ln 2: s = 4, bounded by 8; sequence 1: -ln 2: s = 1/2
    algorithm = lightning.GRPO(entropy=0, ratio="sequence", clip=(0.9, 7.0), correction=None)
    batch = entries(
        [-1.0, -1.0, -2.0], [-1 - LN2, -1 - 3 * LN2, -2 + LN2], [1.0, 1.0, -3.0], sequences=[0, 0, 1]
    )
    loss, metrics = algorithm.loss(batch)
    # three tokens of weight 1/3: -(4 + 4 - 3/2) / 3
    assert loss.item() == pytest.approx(-6.5 / 3)
    assert metrics["clip_share"].item() == 0
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-4 / 3, -4 / 3, 1.5 / 3])


def test_the_sequence_ratio_is_clipped_as_a_whole():
    # s = 2 for both tokens, though the second token's own ratio is 1/2
    algorithm = lightning.GRPO(entropy=0, ratio="sequence", clip=(3e-4, 4e-4), correction=None)
    batch = entries([-1.0, -1.0], [-1 - 3 * LN2, -1 + LN2], [1.0, 1.0])
    loss, metrics = algorithm.loss(batch)
    assert loss.item() == pytest.approx(-(1 + 4e-4))
    assert metrics["clip_share"].item() == pytest.approx(1)
    loss.backward()
    assert batch.logprobs.grad.tolist() == [0.0, 0.0]


def test_the_sequences_of_a_batch_may_come_in_any_order():
    algorithm = lightning.GRPO(entropy=0, ratio="sequence", clip=(0.2, 7.0), correction=None)
    # sequence 1: 2 ln 2 and 0, mean ln 2: s = 2; sequence 0: s = 1
    batch = entries([-1.0, -1.0, -1.0], [-1 - 2 * LN2, -1.0, -1.0], [1.0, 1.0, 1.0], sequences=[1, 0, 1])
    assert algorithm.loss(batch)[0].item() == pytest.approx(-(2 + 1 + 2) / 3)


def test_a_clipped_weight_keeps_the_gradient_of_every_token():
    # ratios 2, 1/4, 1: weights 1.5, 1/2, 1 within [1/2, 1.5]; gradient -weight * A / 3
    algorithm = lightning.GRPO(entropy=0, ratio="weight", clip=0.5, correction=None)
    batch = entries([-1.0, -2.0, -3.0], [-1 - LN2, -2 + 2 * LN2, -3.0], [1.0, -2.0, 4.0])
    loss, metrics = algorithm.loss(batch)
    assert loss.item() == pytest.approx(-(1.5 * 1 * -1 + 0.5 * -2 * -2 + 1 * 4 * -3) / 3)
    assert metrics["clip_share"].item() == pytest.approx(2 / 3)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-1.5 / 3, 1 / 3, -4 / 3])


def test_without_a_lower_bound_a_weight_may_vanish():
    algorithm = lightning.GRPO(entropy=0, ratio="weight", clip=(1.0, 0.28), correction=None)
    batch = entries([-1.0], [-1 + 10 * LN2], [1.0])
    algorithm.loss(batch)[0].backward()
    assert batch.logprobs.grad.item() == pytest.approx(-1 / 1024)


def test_dr_grpo_divides_by_the_same_number_whatever_the_lengths():
    algorithm = lightning.GRPO(group_size=2, tasks_per_step=3, scale="none", aggregation=50)
    credited, _ = assign(
        [rollout(0, 1.0, tokens=4), rollout(1, 0.0, calls=2, tokens=9)],
        uniform,
        algorithm.baseline,
        algorithm.scale,
    )
    # G - mean, no deviation
    assert [t.advantage for each in credited for t in each.transitions] == [0.5, -0.5, -0.5]
    assert list(algorithm.weigh(credited).values()) == pytest.approx([1 / (2 * 3 * 50)] * 3)


def test_with_a_constant_the_sum_of_the_weights_is_told():
    algorithm = lightning.GRPO(entropy=0, aggregation=4, correction=None)
    batch = entries([-1.0, -1.0], [-1 - LN2, -1.0], [1.0, 1.0], weights=[0.125, 0.125])
    _, metrics = algorithm.loss(batch)
    assert metrics["clip_share"] / metrics["loss_weight"] == pytest.approx(1 / 2)


def test_rloo_compares_a_rollout_with_the_others():
    # rewards 1, 0, 0.5: the others' means are 0.25, 0.75, 0.5
    found = advantages(lightning.RLOO(), rollout(0, 1.0), rollout(1, 0.0), rollout(2, 0.5))
    assert found == pytest.approx({"r0c0": 0.75, "r1c0": -0.75, "r2c0": 0.0})


def test_reinforce_pp_normalises_over_the_batch():
    # one rollout of each of four tasks, rewards 1, 0, 0, 0: mean 1/4, deviation sqrt(3)/4; a 0 tells
    batch = [rollout(i, float(i == 0), group=f"g{i}") for i in range(4)]
    found = advantages(lightning.ReinforcePP(), *batch)
    assert found == pytest.approx({"r0c0": math.sqrt(3), **{f"r{i}c0": -1 / math.sqrt(3) for i in (1, 2, 3)}})


def test_reinforce_pp_with_a_baseline_takes_the_group_s_mean_off_first():
    # groups (3, 1) and (0.5, 0): less their means (1, -1) and (1/4, -1/4); mean 0, mean square (2 + 1/8) / 4
    algorithm = lightning.ReinforcePP(group_size=2, tasks_per_step=2, baseline="mean")
    batch = [
        rollout(i, r, group=g) for i, (r, g) in enumerate([(3.0, "a"), (1.0, "a"), (0.5, "b"), (0.0, "b")])
    ]
    unit = math.sqrt(2.125 / 4)
    found = advantages(algorithm, *batch)
    assert found == pytest.approx(
        {"r0c0": 1 / unit, "r1c0": -1 / unit, "r2c0": 0.25 / unit, "r3c0": -0.25 / unit}
    )


def test_groups_of_equal_returns_count_in_the_batch_of_reinforce_pp_and_carry_no_loss():
    # less their means 1, -1, 0, 0: mean 0 and mean square 2 / 4 over the batch
    algorithm = lightning.ReinforcePP(group_size=2, tasks_per_step=2, baseline="mean")
    batch = [
        rollout(i, r, group=g) for i, (r, g) in enumerate([(3.0, "a"), (1.0, "a"), (0.5, "b"), (0.5, "b")])
    ]
    assert advantages(algorithm, *batch) == pytest.approx({"r0c0": math.sqrt(2), "r1c0": -math.sqrt(2)})
    credited, report = assign(batch, uniform, "mean", "batch")
    assert {each.group_id for each in credited} == {"a"}
    assert report.zero_variance_groups == 1


@pytest.mark.parametrize(
    ("options", "acts"),
    [
        ({"entropy": 0.1}, True),
        ({"kl": 0.1}, True),
        ({}, False),
        ({"kl": 0.1, "dynamic_sampling": 1}, False),
        ({"entropy": 0.1, "dynamic_sampling": 1}, False),
    ],
)
def test_a_term_of_the_loss_that_needs_no_advantage_acts_where_all_returns_are_equal(options, acts):
    algorithm = lightning.GRPO(
        group_size=2, tasks_per_step=2, **{"entropy": 0, "credit": "uniform", **options}
    )
    rewards = [(1.0, "a"), (0.0, "a"), (0.5, "b"), (0.5, "b")]
    batch = [rollout(i, reward, group=group) for i, (reward, group) in enumerate(rewards)]
    credited, report = credit_batch(batch, uniform, algorithm)
    found = [(each.group_id, t.advantage) for each in credited for t in each.transitions]
    assert found == [("a", 1.0), ("a", -1.0), *([("b", 0.0)] * 2 if acts else [])]
    assert (report.zero_variance_groups, report.transitions) == (1, {"a": 4 if acts else 2})


def test_who_is_not_trained_and_what_is_no_number_stay_out_of_such_a_term():
    plain = rollout(0, 0.5)
    untrained = replace(plain, transitions=(replace(plain.transitions[0], trained=False),))
    beyond = [rollout(2, float("inf"), group="h"), rollout(3, 0.0, group="h")]
    credited, report = credit_batch(
        [untrained, rollout(1, 0.5), *beyond], uniform, lightning.GRPO(group_size=2, entropy=0.1)
    )
    assert [(each.rollout_id, t.advantage) for each in credited for t in each.transitions] == [
        ("r0", None),
        ("r1", 0.0),
    ]
    assert (report.zero_variance_groups, report.unusable) == (1, ("h",))


LEVEL = [{"a": 1.0}] * 6
RISEN = [*LEVEL, {"a": 1.5}]
"""Entropy of an agent, batch by batch."""


def test_the_bonus_is_left_out_where_there_is_more_entropy_than_at_first():
    algorithm = lightning.GRPO(entropy=0.1, kl=0.2)
    for history in ([], LEVEL):
        assert algorithm.prepare([], history).algorithm is algorithm
    ready = algorithm.prepare([], RISEN)
    assert (ready.algorithm, ready.metrics) == (replace(algorithm, entropy=0.0), {"entropy_bonus": 0.0})

    class Own(lightning.GRPO):
        def __init__(self) -> None:
            super().__init__(kl=0.2, entropy=0.1)

    own = Own().prepare([], RISEN).algorithm
    assert isinstance(own, Own)
    assert (own.entropy, own.kl) == (0.0, 0.2)


def test_a_mini_batch_without_loss_makes_no_step():
    algorithm = lightning.GRPO(mini_batch_size=1, group_size=2)
    rollouts = [rollout(i, float(i == 3), group=f"g{i // 2}") for i in range(4)]
    credited, _ = credit_batch(rollouts, uniform, algorithm)
    parts = mini_batches(credited, algorithm)
    assert [[each.rollout_id for each in part] for part in parts] == [["r0", "r1"], ["r2", "r3"]]
    assert mini_batches(credited, algorithm.prepare([], RISEN).algorithm) == parts[1:]


def test_reinforce_pp_gives_a_call_the_reward_that_comes_after_later_observations():
    # the final reward reaches all three calls of rollout 0, though observations lie between them
    found = advantages(lightning.ReinforcePP(), rollout(0, 1.0, calls=3), rollout(1, 0.0, group="h"))
    assert found == pytest.approx({"r0c0": 1.0, "r0c1": 1.0, "r0c2": 1.0, "r1c0": -1.0})


def test_a_batch_of_equal_rewards_says_nothing_to_reinforce_pp():
    credited, report = assign([rollout(i, 1.0, group=f"g{i}") for i in range(3)], uniform, "none", "batch")
    assert credited == []
    assert (report.groups, report.zero_variance_groups) == (3, 3)


def test_a_batch_of_equal_advantages_still_teaches_a_critic():
    def judged(number: int) -> Trajectory:
        plain = rollout(number, 1.0, group=f"g{number}")
        return replace(plain, transitions=tuple(replace(t, value=0.5) for t in plain.transitions))

    credited, _ = assign([judged(i) for i in range(2)], Gae(), "none", "batch")
    assert [(t.advantage, t.target) for each in credited for t in each.transitions] == [(0.0, 1.0)] * 2


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("group_size", {"group_size": 1}),
        ("scale", {"baseline": "none"}),
        ("dynamic_sampling", {"baseline": "none", "scale": "batch", "dynamic_sampling": 1}),
        ("aggregation", {"aggregation": "constant"}),
        ("clip", {"clip": (0.2, 0.4)}),
        ("clip", {"clip": (0.2, 0.3, 0.4)}),
        ("ratio", {"ratio": "sequence"}),
        ("ratio", {"ratio": "word", "correction": None}),
    ],
)
def test_options_that_contradict_or_would_do_nothing_are_refused_by_name(named, options):
    with pytest.raises(ConfigError, match=f"GRPO can't use {named}="):
        lightning.GRPO(**options)


def test_dynamic_sampling_is_refused_beside_a_critic():
    with pytest.raises(ConfigError, match=r"PPO can't use dynamic_sampling=1: .*critic"):
        lightning.PPO(baseline="mean", dynamic_sampling=1)


@pytest.mark.parametrize("acting", [{"epochs": 2}, {"correction": None}])
def test_a_clip_that_can_act_is_accepted(acting):
    assert lightning.GRPO(clip=(0.2, 0.4), ratio="sequence", **acting).clip_high == 0.4


@pytest.mark.parametrize("kind", [lightning.GRPO, lightning.RLOO, lightning.ReinforcePP])
def test_an_algorithm_is_found_by_its_name(kind):
    from lightning_core.plugins import load_plugins

    assert load_plugins([]).part("algorithm", kind().name) is kind


# dual clip, estimators of the divergence, mini-batches ---------------------------------------------
def test_dual_clip_bounds_what_a_token_of_a_bad_reply_may_weigh():
    # ratios 8, 8 and 2 of bad replies; 8 of a good one
    given = [-1.0, -1.0, -1.0, -1.0], [-1 - 3 * LN2, -1 - 3 * LN2, -1 - LN2, -1 - 3 * LN2]
    batch = entries(*given, [-1.0, -2.0, -1.0, 1.0])
    loss, metrics = lightning.GRPO(entropy=0, clip=(0.2, 0.28, 3.0), correction=None).loss(batch)
    # max(-8, -3) = -3, max(-16, -6) = -6, -2 as it is, min(8, 1.28) = 1.28
    assert loss.item() == pytest.approx((3 + 6 + 2 - 1.28) / 4)
    assert metrics["clip_share"].item() == pytest.approx(3 / 4)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([0, 0, 2 / 4, 0])


def with_reference(ref: list[float], **given) -> Entries:
    batch = entries(**given)
    return replace(batch, ref_logprobs=torch.tensor(ref, dtype=torch.float64))


@pytest.mark.parametrize(
    ("estimator", "divergence", "slope"),
    [("k2", (LN2**2 + 0) / 4, LN2 / 2), ("k3", (0.5 + LN2 - 1) / 2, (1 - 0.5) / 2)],
)
def test_the_divergence_in_the_loss_is_estimated_as_asked_for(estimator, divergence, slope):
    # the first token is twice as likely as under the reference: d = -ln 2; the second as likely
    batch = with_reference([-1 - LN2, -2.0], logprobs=[-1.0, -2.0], old=[-1.0, -2.0], advantages=[0.0, 0.0])
    loss, metrics = lightning.GRPO(entropy=0, kl=(0.5, estimator), correction=None).loss(batch)
    assert loss.item() == pytest.approx(0.5 * divergence)
    assert metrics["kl_reference"].item() == pytest.approx(divergence)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([0.5 * slope, 0.0])


def test_k1_takes_its_sum_over_each_reply_from_the_reward():
    # sequence 0: o - s = ln 2 and 2 ln 2, sum 3 ln 2; sequence 1: -ln 2
    batch = with_reference(
        [-1 - LN2, -2 + LN2, -1 - 2 * LN2],
        logprobs=[-1.0, -2.0, -1.0],
        old=[-1.0, -2.0, -1.0],
        advantages=[1.0, 0.5, 1.0],
        sequences=[0, 1, 0],
    )
    loss, metrics = lightning.GRPO(entropy=0, kl=(0.1, "k1"), correction=None).loss(batch)
    first, second = 1 - 0.1 * 3 * LN2, 0.5 + 0.1 * LN2
    assert loss.item() == pytest.approx(-(first + second + first) / 3)
    assert metrics["kl_reference"].item() == pytest.approx(2 * LN2 / 3)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-first / 3, -second / 3, -first / 3])


def test_on_the_policy_the_gradients_of_k1_and_k2_are_that_of_the_divergence_in_the_mean_and_k3_s_is_not():
    """Exact over three actions: each weighed by its probability."""
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64), 0)
    now = torch.log_softmax(logits, 0)
    (wanted,) = torch.autograd.grad((now.exp() * (now - ref)).sum(), logits)
    found = {}
    for estimator in ("k1", "k2", "k3"):
        now = torch.log_softmax(logits, 0)
        nothing = torch.zeros(3, dtype=torch.float64)
        batch = Entries(
            now, now.detach(), nothing, now.exp().detach(), torch.arange(3), nothing - 1, None, ref
        )
        loss, _ = lightning.GRPO(entropy=0, kl=(1.0, estimator), correction=None).loss(batch)
        (found[estimator],) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(found["k1"], wanted)
    torch.testing.assert_close(found["k2"], wanted)
    assert not torch.allclose(found["k3"], wanted, rtol=0.1)


def test_the_entropy_bonus_has_the_gradient_of_the_entropy_in_the_mean():
    """Exact over three actions: each weighed by its probability."""
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    now = torch.log_softmax(logits, 0)
    (wanted,) = torch.autograd.grad(0.1 * (now.exp() * now).sum(), logits)
    now, nothing = torch.log_softmax(logits, 0), torch.zeros(3, dtype=torch.float64)
    given = now.detach(), nothing, now.exp().detach(), torch.arange(3), nothing - 1
    loss, _ = lightning.GRPO(entropy=0.1, correction=None).loss(Entries(now, *given))
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], wanted)


def test_mini_batches_are_whole_groups_in_their_order_and_a_constant_is_shared_among_theirs():
    groups = [rollout(n, 1.0, group=f"g{n // 2}") for n in range(10)]
    algorithm = lightning.GRPO(group_size=2, tasks_per_step=5, mini_batch_size=2, credit="uniform")
    parts = mini_batches(groups, algorithm)
    assert [[each.rollout_id for each in part] for part in parts] == [
        ["r0", "r1", "r2", "r3"],
        ["r4", "r5", "r6", "r7"],
        ["r8", "r9"],
    ]
    assert mini_batches(groups, lightning.GRPO()) == [tuple(groups)]
    constant = replace(algorithm, aggregation=10)
    scored = [replace(t, advantage=1.0) for t in groups[0].transitions]
    weights = constant.weigh([replace(groups[0], transitions=tuple(scored))])
    assert list(weights.values()) == [1 / (2 * 2 * 10)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": 0.1}, "no clip acts"),
        ({"clip": (0.2, 0.2, 1.0)}, "clip=1.0"),
        ({"clip": (0.2, 0.2, 3.0, 4.0)}, "dual clip's bound"),
        ({"kl": (0.1, "k4")}, "k1, k2, k3"),
        ({"kl": (0.1,)}, r"kl=\(0\.1,\): give its weight"),
        ({"correction": "truncated"}, r"correction='truncated': give Truncated\(\)"),
        ({"correction": Truncated}, r"correction=<class .*: give Truncated\(\)"),
        ({"ratio": "weight", "clip": (1.0, 0.28, 3.0), "correction": None}, "no use for dual clip's bound"),
        ({"mini_batch_size": 0}, "mini_batch_size"),
        ({"mini_batch_size": 8}, "whole batch"),
    ],
)
def test_what_would_do_nothing_or_makes_no_sense_is_refused_by_name(options, said):
    with pytest.raises(ConfigError, match=said):
        lightning.GRPO(**options)
    lightning.GRPO(mini_batch_size=2, clip=0.3)
