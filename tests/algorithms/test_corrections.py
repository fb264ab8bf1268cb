"""Corrections for what other weights have sampled, against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch

from lightning_core.algorithms.base import Entries
from lightning_core.algorithms.policy_gradient import GRPO, Correction, Masked, Truncated
from lightning_core.errors import ConfigError

LN2 = math.log(2)


def entries(now, began, old, advantages) -> Entries:
    """Tokens of equal weight: p (now), q (when the update began) and o (as recorded)."""
    size = len(now)
    return Entries(
        logprobs=torch.tensor(now, dtype=torch.float64, requires_grad=True),
        proximal_logprobs=torch.tensor(began, dtype=torch.float64),
        old_logprobs=torch.tensor(old, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.full((size,), 1 / size, dtype=torch.float64),
        sequences=torch.zeros(size, dtype=torch.int64),
        units=torch.full((size,), -1),
    )


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        # q - o = ln 4, ln 2, 0, -ln 2, -ln 4: plain weights 4, 2, 1, 1/2, 1/4
        (Truncated(3.0), [3, 2, 1, 0.5, 0.25]),
        (Truncated(1.0), [1, 1, 1, 0.5, 0.25]),
        (Masked(0.4, 3.0), [0, 2, 1, 0.5, 0]),
        (Masked(0.0, 3.0), [0, 2, 1, 0.5, 0.25]),
    ],
)
def test_a_correction_bounds_the_plain_importance_weight(correction: Correction, expected):
    gaps = torch.tensor([2 * LN2, LN2, 0.0, -LN2, -2 * LN2], dtype=torch.float64)
    proximal = (-3 + gaps).requires_grad_()
    weights = correction.weigh(proximal, torch.full((5,), -3.0, dtype=torch.float64))
    assert weights.tolist() == pytest.approx(expected)
    assert not weights.requires_grad


def test_decoupled_ppo_clips_against_q_and_makes_up_for_o():
    # token    p - q    r     q - o   trust   A    min(r A, clip(r) A)    gradient of the loss: -trust r A / 3
    #   0      ln 2     2      ln 2     2     1    1.28, clipped           0
    #   1     -ln 2    1/2    -ln 2    1/2    1    1/2                    -1/12
    #   2        0      1    2 ln 2   4 -> 2 -1    -1                     +2/3
    q = [-2.0, -2.0, -2.0]
    batch = entries(
        [-2 + LN2, -2 - LN2, -2.0], q, [-2 - LN2, -2 + LN2, -2 - 2 * LN2], [1.0, 1.0, -1.0]
    )  # fmt: skip
    loss, metrics = GRPO(entropy=0, correction=Truncated(2.0)).loss(batch)
    loss.backward()
    assert loss.item() == pytest.approx(-(2 * 1.28 + 0.5 * 0.5 - 2 * 1) / 3)
    assert batch.logprobs.grad.tolist() == pytest.approx([0, -1 / 12, 2 / 3])
    assert metrics["clip_share"].item() == pytest.approx(1 / 3)
    assert metrics["importance_weight"].item() == pytest.approx((2 + 0.5 + 2) / 3)
    assert metrics["bounded_share"].item() == pytest.approx(1 / 3)


def test_without_a_correction_the_ratio_is_to_what_was_recorded_whatever_the_update_began_with():
    batch = entries([-2.0], [-5.0], [-2 - LN2], [1.0])
    loss, metrics = GRPO(entropy=0, correction=None).loss(batch)
    assert loss.item() == pytest.approx(-1.28)
    assert set(metrics) == {"clip_share"}


def test_a_masked_token_carries_no_gradient_and_is_counted():
    batch = entries([-2.0, -2.0], [-2.0, -2.0], [-2 - 2 * LN2, -2 + LN2], [1.0, 1.0])
    loss, metrics = GRPO(entropy=0, correction=Masked(0.4, 2.0)).loss(batch)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([0, -0.25])
    assert metrics["bounded_share"].item() == pytest.approx(0.5)
    assert metrics["importance_weight"].item() == pytest.approx(0.25)


def test_the_weighted_gradient_is_that_of_the_policy_itself():
    # two actions, sampled with 3/4 and 1/4, now 1/2 each, worth 1 and 3: E_o[w A grad p] = E_p[A grad p]
    sampled, now, worth = [0.75, 0.25], [0.5, 0.5], [1.0, 3.0]
    batch = entries(*[[math.log(x) for x in values] for values in (now, now, sampled)], worth)
    weights = torch.tensor(sampled, dtype=torch.float64)  # the expectation over what was sampled
    GRPO(entropy=0, correction=Truncated(100.0)).loss(replace(batch, weights=weights))[0].backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-0.5 * 1, -0.5 * 3])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Truncated(0.5), "bound=0.5"),
        (lambda: Truncated(math.nan), "nan"),
        (lambda: Masked(1.5, 2.0), "low=1.5"),
        (lambda: Masked(0.5, 1.0), "high=1.0"),
        (lambda: Masked(-0.1, 2.0), "low=-0.1"),
    ],
)
def test_bounds_that_leave_out_the_weight_on_policy_are_refused(make, named):
    with pytest.raises(ConfigError, match=named):
        make()
