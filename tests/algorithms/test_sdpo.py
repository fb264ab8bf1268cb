"""SDPO: its loss against numbers worked out by hand, and what its teachers are shown."""

import math

import pytest
import torch

import lightning_core as lightning
from lightning_core.algorithms.base import Entries, credit_batch
from lightning_core.algorithms.sdpo import SDPO, taught
from lightning_core.credit.whole import uniform
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory, Transition

NAN = math.nan
LN3 = math.log(3)


def entries(logprobs: list[float], teacher: list[float], advantages: list[float]) -> Entries:
    """Entries of one transition each, of equal weight, on-policy."""
    now = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    count = len(logprobs)
    return Entries(
        logprobs=now,
        old_logprobs=now.detach(),
        proximal_logprobs=now.detach(),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.full((count,), 1 / count, dtype=torch.float64),
        sequences=torch.arange(count),
        units=torch.full((count,), -1),
        teacher_logprobs=torch.tensor(teacher, dtype=torch.float64),
    )


def test_the_advantage_of_a_token_is_the_teachers_log_probability_less_its_own():
    # D = -1 + 3 = 2 and -4 + 1 = -3; the third has no teacher. Ratios are 1: the loss is -(2 - 3 + 0) / 3,
    # and its gradient -D / 3
    batch = entries([-3.0, -1.0, -2.0], [-1.0, -4.0, NAN], [1.0, 1.0, 1.0])
    loss, _ = SDPO().loss(batch)
    assert loss.item() == pytest.approx(1 / 3)
    loss.backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-2 / 3, 1.0, 0.0])


def test_grpo_has_its_share_of_the_advantage_also_where_there_is_no_teacher():
    # .25 * A + .75 * D: .25 * 2 + .75 * 2 = 2, .25 * -2 + .75 * -4 = -3.5, .25 * 1 + 0 = .25
    batch = entries([-3.0, -1.0, -2.0], [-1.0, -5.0, NAN], [2.0, -2.0, 1.0])
    SDPO(grpo=0.25).loss(batch)[0].backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-2 / 3, 3.5 / 3, -0.25 / 3])


def test_the_gate_bounds_what_a_token_is_taught():
    # sigmoid(2 * ln 3 / 2) = 3/4, sigmoid(-ln 3) = 1/4, and 0 without a teacher
    batch = entries([-2.0, -2.0, -2.0], [-2.0 + LN3 / 2, -2.0 - LN3 / 2, NAN], [1.0, 1.0, 1.0])
    SDPO(gate=2.0).loss(batch)[0].backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-0.25, -0.25 / 3, 0.0])


def test_a_later_step_of_an_update_is_taught_what_is_left_of_the_difference():
    # the ratio is e^-.1 = .905 and D = -1 + 2.1 = 1.1; the gradient is that of the ratio, -r * D
    batch = entries([-2.1], [-1.0], [1.0])
    began = torch.tensor([-2.0], dtype=torch.float64)
    later = Entries(
        **{name: getattr(batch, name) for name in Entries.__slots__}
        | {"proximal_logprobs": began, "old_logprobs": began}
    )
    SDPO(epochs=2).loss(later)[0].backward()
    assert batch.logprobs.grad.tolist() == pytest.approx([-math.exp(-0.1) * 1.1])


# who is taught what -----------------------------------------------------------------------------------
def rollout(name: str, reward: float, *calls: str | Transition) -> Trajectory:
    """A rollout whose calls are of these agents."""
    made = tuple(call(name, n, one) if isinstance(one, str) else one for n, one in enumerate(calls))
    return Trajectory(name, "g", "t", reward, made)


def call(name: str, number: int, agent: str = "a", **options) -> Transition:
    return Transition(name, f"c{number}", 0, agent, True, [1, 2 + number], [9, 3], [-1.0, -1.0], 0, **options)


def replies(*group: Trajectory) -> dict:
    return {t.key: f"{t.rollout_id}.{t.call_id}" for each in group for t in each.transitions}


def hints(*group: Trajectory, **options) -> dict[str, str]:
    found = SDPO(reply_hint="{reply}", feedback_hint="says {feedback}", **options).hints(
        group, replies(*group)
    )
    return {f"{rollout_id}.{call_id}": hint for (rollout_id, call_id, _), hint in found.items()}


def test_a_worse_rollout_is_shown_the_best_ones_reply_at_the_same_turn_of_the_same_agent():
    group = (
        rollout("r0", 0.0, "a", "b", "a"),
        rollout("r1", 1.0, "b", "a", "a"),
        rollout("r2", 0.5, "a", "a", "a"),
        rollout("r3", 1.0, "a", "a"),  # as good as r1, and after it
    )
    assert hints(*group) == {
        "r0.c0": "r1.c1", "r0.c1": "r1.c0", "r0.c2": "r1.c2",
        "r2.c0": "r1.c1", "r2.c1": "r1.c2",  # no better rollout has a third turn
    }  # fmt: skip


def test_a_group_without_a_better_rollout_and_without_feedback_carries_no_loss():
    equal = rollout("r0", 0.0, "a"), rollout("r1", 0.0, "a")
    assert hints(*equal) == {}
    credited, report = credit_batch(equal, taught, SDPO())
    assert credited == []
    assert report.zero_variance_groups == 1


def test_feedback_is_shown_where_no_sibling_is_better_and_not_to_what_ended_best():
    told = rollout("r0", 0.0, call("r0", 0, feedback="no such column"))
    again = rollout("r1", 0.0, "a")
    assert hints(told, again) == {"r0.c0": "says no such column"}
    well = rollout("r2", 1.0, call("r2", 0, feedback="all rows match"))
    assert hints(told, well) == {"r0.c0": "r2.c0"}
    assert hints(well, rollout("r3", 1.0, "a")) == {}


def test_only_what_has_a_teacher_has_an_advantage_and_a_weight():
    group = rollout("r0", 0.0, call("r0", 0, teacher_ids=[1, 2, 3])), rollout("r1", 1.0, "a")
    credited, _ = credit_batch(group, taught, SDPO())
    assert [[t.advantage for t in each.transitions] for each in credited] == [[1.0], [None]]
    assert SDPO().weigh(credited) == {("r0", "c0", 0): 0.5}
    too_long = rollout("r0", 0.0, "a"), group[1]
    assert SDPO().weigh(credit_batch(too_long, taught, SDPO())[0]) == {}


def test_with_a_share_of_grpo_the_whole_group_carries_loss():
    mixed = SDPO(grpo=0.5)
    assert mixed.credit == "uniform"
    group = rollout("r0", 0.0, call("r0", 0, teacher_ids=[1, 2, 3])), rollout("r1", 1.0, "a")
    credited, _ = credit_batch(group, uniform, mixed)
    assert mixed.weigh(credited) == {("r0", "c0", 0): 0.25, ("r1", "c0", 0): 0.25}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"grpo": 1.0}, "grpo"),
        ({"grpo": -0.1}, "grpo"),
        ({"gate": 0.0}, "gate"),
        ({"group_size": 1}, "group_size"),
        ({"reply_hint": "Try again."}, "reply_hint='Try again.': it has no {reply}"),
        ({"feedback_hint": "Try again."}, "feedback_hint='Try again.': it has no {feedback}"),
        ({"entropy": 0.05}, "entropy=0.05: with grpo=0"),
        ({"kl": 0.01}, "kl=0.01: with grpo=0"),
        ({"scale": "none"}, "scale='none': with grpo=0"),
        ({"baseline": "leave_one_out"}, "baseline='leave_one_out': with grpo=0"),
        ({"credit": "relevance"}, "credit='relevance': with grpo=0"),
    ],
)
def test_options_that_would_do_nothing_are_refused_by_name(options, named):
    with pytest.raises(ConfigError) as refused:
        lightning.SDPO(**options)
    assert named in str(refused.value)


def test_options_that_act_with_a_share_of_grpo_are_taken():
    mixed = lightning.SDPO(grpo=0.5, gate=5.0, entropy=0.05, kl=0.01, scale="none", credit="relevance")
    assert mixed.needs_reference
    assert mixed.needs_teacher
