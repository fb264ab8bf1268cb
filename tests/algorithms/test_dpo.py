"""DPO's loss against numbers worked out by hand."""

import math

import pytest
import torch

from lightning_core.algorithms import losses
from lightning_core.algorithms.base import Entries
from lightning_core.algorithms.dpo import DPO
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory, Transition

LN3 = math.log(3)


def entries(logprobs, ref, signs, units, weights=None) -> Entries:
    now = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    share = weights or 1 / len(set(units))
    return Entries(
        logprobs=now,
        proximal_logprobs=now.detach(),
        old_logprobs=now.detach(),
        units=torch.tensor(units),
        advantages=torch.tensor(signs, dtype=torch.float64),
        weights=torch.full((len(units),), share, dtype=torch.float64),
        sequences=torch.arange(len(units)),
        ref_logprobs=torch.tensor(ref, dtype=torch.float64),
    )


def test_the_loss_of_a_pair_is_that_of_its_sums():
    # better side: (-1) + (-2) = -3 against -3 - 2 ln 3; worse side: -1 against -1 + 2 ln 3: h = 4 ln 3.
    # beta 1/4: sigmoid(ln 3) = 3/4, loss ln(4/3), gradient beta * 1/4 = 1/16 on every token
    batch = entries([-1.0, -1.0, -2.0], [-1.0 + 2 * LN3, -1.0, -2.0 - 2 * LN3], [-1, 1, 1], [7, 7, 7])
    loss, metrics = DPO(beta=0.25).loss(batch)
    assert loss.item() == pytest.approx(math.log(4 / 3))
    assert metrics["pair_margin"].item() == pytest.approx(LN3)
    assert metrics["pair_accuracy"].item() == 1
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([1 / 16, -1 / 16, -1 / 16])


def test_every_pair_counts_once_however_many_tokens_it_has():
    # beta 1, mean of two pairs. The first: h = -ln 3, loss ln 4, sigmoid(-h) = 3/4; the other: 0, ln 2, 1/2
    batch = entries(
        [-1.0, -1.0, -4.0, -1.0, -1.0, -1.0], [-1.0, -1.0 - LN3, -4.0, -1.0, -1.0, -1.0],
        [1, -1, 1, 1, 1, -1], [0, 0, 1, 1, 1, 1],
    )  # fmt: skip
    loss, metrics = DPO(beta=1.0).loss(batch)
    assert loss.item() == pytest.approx((math.log(4) + math.log(2)) / 2)
    assert metrics["pair_accuracy"].item() == 0
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-3 / 8, 3 / 8, -1 / 4, -1 / 4, -1 / 4, 1 / 4])


def test_ipo_is_the_squared_distance_from_its_target():
    # h = 3, target 1 / (2 * 0.25) = 2: loss 1, gradient 2 (h - target) = 2
    batch = entries([-1.0, -5.0], [-2.0, -3.0], [1, -1], [0, 0])
    loss, _ = DPO(beta=0.25, loss_type="ipo").loss(batch)
    assert loss.item() == pytest.approx(1)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([2, -2])


def test_normalised_sides_are_means():
    # better side: mean of (2 ln 3, 0) over the reference = ln 3; worse side 0: sigmoid(ln 3) = 3/4
    batch = entries([0.0, 0.0, -1.0], [-2 * LN3, 0.0, -1.0], [1, 1, -1], [3, 3, 3])
    loss, _ = DPO(beta=1.0, loss_type="sigmoid_norm").loss(batch)
    assert loss.item() == pytest.approx(math.log(4 / 3))
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-1 / 8, -1 / 8, 1 / 4])


def test_parts_of_a_batch_add_up_to_it():
    sides = ([-1.0, -2.0, -0.5, -3.0], [-1.5, -1.0, -0.2, -2.0], [1, -1, 1, -1], [0, 0, 1, 1])
    whole, metrics = DPO().loss(entries(*sides))
    parts = [DPO().loss(entries(*(s[i : i + 2] for s in sides), weights=0.5)) for i in (0, 2)]
    assert whole.item() == pytest.approx(sum(loss.item() for loss, _ in parts))
    for name, value in metrics.items():
        assert value.item() == pytest.approx(sum(part[name].item() for _, part in parts))


def test_the_pure_functions_take_one_value_for_each_pair():
    chosen, rejected = torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, -1.0])
    start = torch.zeros(2)
    assert losses.preference(chosen, rejected, start, start).tolist() == [2, -1]
    expected = [math.log(1 + math.exp(-1)), math.log(1 + math.exp(0.5))]
    assert losses.dpo(chosen, rejected, start, start, 0.5).tolist() == pytest.approx(expected)
    assert losses.ipo(chosen, rejected, start, start, 0.5).tolist() == [1, 4]


def rollout(number: int, reward: float, lengths: list[int], group: str = "g") -> Trajectory:
    steps = tuple(
        Transition(f"r{number}", f"c{i}", 0, "a", True, [1], [2] * n, [0.0] * n, 0)
        for i, n in enumerate(lengths)
    )
    return Trajectory(f"r{number}", group, "t", reward, steps)


def test_the_replies_of_a_pair_are_one_unit_with_one_weight():
    batch = [
        rollout(0, 0.0, [2, 5]),
        rollout(1, 1.0, [3]),
        rollout(2, 1.0, [1], "h"),
        rollout(3, 0.0, [4], "h"),
        rollout(4, 0.5, [9], "alone"),
    ]
    algorithm = DPO()
    units, weights = algorithm.units(batch), algorithm.weigh(batch)
    assert {key[0] + key[1]: unit for key, unit in units.items()} == {
        "r1c0": 0, "r0c0": 0, "r0c1": 0, "r2c0": 1, "r3c0": 1,
    }  # fmt: skip
    assert weights == dict.fromkeys(units, 1 / 2)
    assert DPO().weigh([batch[4]]) == {}


@pytest.mark.parametrize(
    "option",
    [
        {"beta": 0},
        {"group_size": 1},
        {"loss_type": "hinge"},
        {"margin": -1},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        DPO(**option)
