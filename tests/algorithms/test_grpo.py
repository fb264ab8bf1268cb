"""GRPO's loss against numbers worked out by hand."""

import math

import pytest
import torch

from lightning_core.algorithms.base import Entries
from lightning_core.algorithms.losses import k3
from lightning_core.algorithms.policy_gradient import GRPO, Truncated
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory, Transition

LN2 = math.log(2)


def entries(logprobs, old, advantages, weights=None, ref=None) -> Entries:
    size = len(logprobs)
    now = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    return Entries(
        logprobs=now,
        proximal_logprobs=now.detach(),
        units=torch.full((size,), -1),
        old_logprobs=torch.tensor(old, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights or [1 / size] * size, dtype=torch.float64),
        sequences=torch.zeros(size, dtype=torch.int64),
        ref_logprobs=None if ref is None else torch.tensor(ref, dtype=torch.float64),
    )


def test_the_clip_bounds_a_good_token_above_and_a_bad_one_below():
    # ratios 2, 1/2, 2, 1/2 with advantages +1, -1, -1, +1:
    # min(2, 1.28) = 1.28; min(-0.5, -0.8) = -0.8; min(-2, -1.28) = -2; min(0.5, 0.8) = 0.5: mean -(-1.02)/4
    batch = entries([-LN2, -2 * LN2] * 2, [-2 * LN2, -LN2] * 2, [1.0, -1.0, -1.0, 1.0])
    loss, metrics = GRPO(entropy=0, correction=None).loss(batch)
    assert loss.item() == pytest.approx(1.02 / 4)
    assert metrics["clip_share"].item() == pytest.approx(0.5)
    loss.backward()
    # clipped tokens have no gradient; the others have -w A r
    assert batch.logprobs.grad.tolist() == pytest.approx([0, 0, 0.25 * 2, -0.25 * 0.5])


def test_truncated_importance_sampling_scales_the_gradient_and_is_bounded():
    # exp(p - o) = 4 (cut to 2), 1/2; gradient of a token is -weight * trust * A
    batch = entries([-1.0, -1.0], [-1.0 - 2 * LN2, -1.0 + LN2], [1.0, -3.0])
    loss, metrics = GRPO(entropy=0, correction=Truncated(2.0)).loss(batch)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-0.5 * 2 * 1, 0.5 * 0.5 * 3])
    assert metrics["importance_weight"].item() == pytest.approx((2 + 0.5) / 2)
    assert metrics["clip_share"].item() == 0


def test_on_policy_the_gradient_is_reinforce():
    batch = entries([-0.3, -0.7], [-0.3, -0.7], [2.0, -1.0], weights=[0.25, 0.75])
    for correction in (None, Truncated(2.0)):
        batch.logprobs.grad = None
        GRPO(entropy=0, correction=correction).loss(batch)[0].backward()
        assert batch.logprobs.grad.tolist() == pytest.approx([-0.5, 0.75])


def test_the_reference_term_is_k3():
    # d = ln 2: 2 - ln 2 - 1
    assert k3(torch.tensor([-LN2]), torch.tensor([0.0])).item() == pytest.approx(1 - LN2)
    batch = entries([-LN2], [-LN2], [0.0], ref=[0.0])
    loss, metrics = GRPO(entropy=0, kl=0.1).loss(batch)
    assert loss.item() == pytest.approx(0.1 * (1 - LN2))
    assert metrics["kl_reference"].item() == pytest.approx(1 - LN2)


def test_a_truncated_weight_has_no_gradient():
    logprobs = torch.tensor([-1.0], requires_grad=True)
    assert not Truncated(2.0).weigh(logprobs, torch.tensor([-1.5])).requires_grad


def trajectory(number: int, *lengths: int, trained: bool = True, advantage: float | None = 1.0) -> Trajectory:
    steps = tuple(
        Transition(f"r{number}", f"c{i}", 0, "a", trained, [1], [2] * n, [0.0] * n, 0, advantage=advantage)
        for i, n in enumerate(lengths)
    )
    return Trajectory(f"r{number}", "g", "t", 1.0, steps)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # rollout 0 has calls of 2 and 6 tokens, rollout 1 one of 2: 10 tokens, 3 calls, 2 rollouts
        ("token", {"r0c0": 1 / 10, "r0c1": 1 / 10, "r1c0": 1 / 10}),
        ("sequence", {"r0c0": 1 / 6, "r0c1": 1 / 18, "r1c0": 1 / 6}),
        ("rollout", {"r0c0": 1 / 16, "r0c1": 1 / 16, "r1c0": 1 / 4}),
    ],
)
def test_aggregation_says_what_each_token_weighs(aggregation, expected):
    batch = (
        trajectory(0, 2, 6),
        trajectory(1, 2),
        trajectory(2, 5, advantage=None),
        trajectory(3, 5, trained=False),
    )
    weights = GRPO(aggregation=aggregation).weigh(batch)
    assert {rollout + call: weight for (rollout, call, _), weight in weights.items()} == pytest.approx(
        expected
    )
    tokens = {"r0c0": 2, "r0c1": 6, "r1c0": 2}
    assert sum(
        tokens[rollout + call] * weight for (rollout, call, _), weight in weights.items()
    ) == pytest.approx(1)


@pytest.mark.parametrize(
    "option", [{"group_size": 1}, {"clip": 1.5}, {"aggregation": "mean"}, {"kl": -1}, {"epochs": 0}]
)
def test_an_option_out_of_range_is_refused_by_name(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        GRPO(**option)
