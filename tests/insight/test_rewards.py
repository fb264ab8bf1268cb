"""A run's rewards, by hand: the same for the list, the tile, the verdict and the terminal."""

from __future__ import annotations

import pytest

from lightning_core.insight.rewards import (
    Change,
    agent_changes,
    change,
    end_width,
    reward_curve,
    running_mean,
    training_change,
)
from lightning_core.records.types import Metrics


def test_the_ends_of_a_run_are_a_quarter_of_it_and_do_not_overlap() -> None:
    widths = {steps: end_width(steps) for steps in (1, 2, 3, 4, 6, 8, 12, 60)}
    assert widths == {1: 1, 2: 1, 3: 1, 4: 2, 6: 3, 8: 3, 12: 3, 60: 15}
    assert training_change([0.0, 0.0, 0.3, 0.3, 0.6, 0.9]) == Change(
        "training", pytest.approx(0.1), pytest.approx(0.6), 3
    )
    assert training_change([]) is None


def test_held_out_rewards_come_before_training_rewards() -> None:
    assert change([0.5, 0.9, 0.7], [0.0, 1.0]) == Change("held-out", 0.5, 0.7)
    assert change([0.5], [0.0, 1.0]) == Change("training", 0.0, 1.0, 1)
    assert change([0.5], []) == Change("once", 0.5, 0.5), "of an evaluation alone"
    assert change([], []) is None


def test_an_agent_is_measured_by_the_rollouts_in_which_it_acted() -> None:
    def step(number: int, **agents: float) -> Metrics:
        values = {f"agent/{name}/reward": value for name, value in agents.items()}
        return Metrics(run_id="r", step=number, values={"reward": 0.5, **values})

    metrics = [step(0, writer=0.25), step(1, writer=0.5, checker=0.0), step(2, writer=0.75, checker=1.0)]
    assert agent_changes(metrics) == {
        "writer": Change("training", 0.25, 0.75, 1),
        "checker": Change("training", 0.0, 1.0, 1),
    }


def test_a_curve_leaves_out_steps_without_rollouts() -> None:
    metrics = [
        Metrics(run_id="r", step=n, values=values)
        for n, values in enumerate(({"reward": 0.5}, {"demonstrations": 2.0}, {"reward": 1.0}))
    ]
    assert reward_curve(metrics) == ([1, 3], [0.5, 1.0])
    assert running_mean([0.0, 1.0, 2.0], width=2) == [0.0, 0.5, 1.5]
