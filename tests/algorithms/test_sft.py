"""SFT's loss against numbers worked out by hand, and what it refuses."""

import math

import pytest
import torch

from lightning_core.algorithms.base import Entries
from lightning_core.algorithms.sft import SFT
from lightning_core.errors import ConfigError, TaskError
from lightning_core.records.types import Demonstration, Trajectory, Transition

ASK = [{"role": "user", "content": "How many?"}]
ROWS = [{"messages": ASK, "reply": "two"}]


def test_the_loss_is_the_mean_negative_log_likelihood():
    # -(ln 1/2 + ln 1/4 + ln 1/8) / 3 = 2 ln 2, gradient -1/3
    now = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64).log().requires_grad_()
    batch = Entries(
        logprobs=now,
        proximal_logprobs=now.detach(),
        old_logprobs=torch.full((3,), math.nan, dtype=torch.float64),
        units=torch.full((3,), -1),
        advantages=torch.ones(3, dtype=torch.float64),
        weights=torch.full((3,), 1 / 3, dtype=torch.float64),
        sequences=torch.zeros(3, dtype=torch.int64),
    )
    loss, _ = SFT().loss(batch)
    assert loss.item() == pytest.approx(2 * math.log(2))
    loss.backward()
    assert now.grad.tolist() == pytest.approx([-1 / 3] * 3)


def test_the_weights_of_the_kept_tokens_add_up_to_1():
    def rollout(number: int, length: int, advantage: float | None, trained: bool = True) -> Trajectory:
        reply = Transition(
            f"r{number}", "c", 0, "a", trained, [1], [2] * length, [0.0] * length, 0, advantage=advantage
        )
        return Trajectory(f"r{number}", "g", "t", 1.0, (reply,))

    batch = [rollout(0, 3, 1.0), rollout(1, 5, 1.0), rollout(2, 7, None), rollout(3, 2, 1.0, trained=False)]
    assert SFT().weigh(batch) == {("r0", "c", 0): 1 / 8, ("r1", "c", 0): 1 / 8}
    assert SFT().weigh(batch[2:]) == {}


def test_demonstrations_take_the_place_of_rollouts():
    assert SFT().learns_from is None
    given = SFT(demonstrations=[*ROWS, Demonstration(messages=ASK, reply="three")], batch_size=2).learns_from
    assert given is not None
    assert [each.reply for each in given.rows] == ["two", "three"]
    assert given.batch_size == 2


def test_a_thousand_demonstrations_are_not_in_the_settings_of_a_run():
    assert "How many" not in repr(SFT(demonstrations=ROWS * 1000))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": ASK}, "reply"),
        ({"messages": [], "reply": "x"}, "messages"),
        ({"messages": [{"content": "x"}], "reply": "x"}, r"messages\[0\] has no role"),
        ({"messages": ASK, "reply": ""}, "says nothing"),
        ({"messages": ASK, "reply": {"role": "user", "content": "x"}}, "role 'user'"),
        ({"messages": ASK, "reply": "x", "answer": "y"}, "answer"),
        ("How many?", "is a str"),
    ],
)
def test_a_malformed_demonstration_is_refused_by_its_place(row, words):
    with pytest.raises(TaskError, match=rf"demonstration 2 (.|\n)*{words}"):
        SFT(demonstrations=[*ROWS * 2, row])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"group_size": 0}, "group_size"),
        ({"group_size": 1}, "least_return"),
        ({"epochs": 0}, "epochs"),
        ({"demonstrations": []}, "at least one"),
        ({"demonstrations": ROWS, "group_size": 4}, "group_size"),
        ({"demonstrations": ROWS, "least_return": 1.0}, "least_return"),
        ({"demonstrations": ROWS, "batch_size": 0}, "batch_size"),
        ({"batch_size": 8}, "batch_size"),
    ],
)
def test_an_option_that_can_not_be_honoured_is_refused_by_name(options, named):
    with pytest.raises(ConfigError, match=named):
        SFT(**options)
