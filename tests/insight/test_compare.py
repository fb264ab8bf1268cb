"""Runs side by side, and what history supports about a setting."""

from __future__ import annotations

import pytest

from lightning_core.insight.compare import History, advise, compare, compare_trials, difference_of
from lightning_core.records.types import Metrics, Run, Status, Task
from tests.insight.records import rollout


def history(name: str, score: float, script: str = "app.py", **settings: object) -> History:
    """A run with two held-out tasks, of which one earns twice the score, and one failed."""
    run = Run.model_validate({"id": name, "provenance": {"settings": settings, "script": script}})
    held_out = (
        rollout(0, 2 * score, task=Task(id="a", input={})),
        rollout(1, 0.5, task=Task(id="b", input={}), status=Status.FAILED),
    )
    return History(run, [Metrics(run_id=name, step=0, values={"reward": score})], held_out)


def test_runs_side_by_side():
    runs = [
        history("x", 0.25, seed=1, credit="turn"),
        history("y", 0.5, seed=1, credit="uniform", extra=True),
    ]
    found = compare([*runs, History(Run(id="z"))])
    assert found.settings == {
        "credit": ("turn", "uniform", None),
        "extra": (None, True, None),
        "seed": (1, 1, None),
    }
    assert found.tasks == {"a": (0.5, 1.0, None), "b": (0.0, 0.0, None)}
    assert [[one.mean for one in of] for of in found.curves["reward"]] == [[0.25], [0.5], []]
    assert "seed" not in compare(runs).settings


def test_below_three_runs_a_side_there_is_no_difference():
    runs = [history(f"{n}", 0.5, seed=n, credit="turn") for n in range(3)]
    runs += [history(f"u{n}", 0.6, seed=n, credit="uniform") for n in range(2)]
    (found,) = advise(runs)
    assert (found.difference, found.low, found.high) == (None, None, None)
    assert found.message == ("credit='uniform' against 'turn': not enough runs (2 and 3; 3 each are needed)")


def test_three_runs_a_side_give_a_difference_with_an_interval():
    runs = [history(f"{n}", 0.4 + 0.01 * n, seed=n, credit="turn") for n in range(3)]
    runs += [history(f"u{n}", 0.6 + 0.01 * n, seed=n, credit="uniform") for n in range(3)]
    (found,) = advise(runs)
    assert (found.setting, found.values, found.runs) == ("credit", ("turn", "uniform"), (3, 3))
    assert found.difference == pytest.approx(0.2)
    assert found.low is not None
    assert found.high is not None
    assert 0.18 - 1e-9 <= found.low < 0.2 < found.high <= 0.22 + 1e-9
    assert found.message.startswith("credit='uniform' against 'turn': +0.200 of the final greedy score")


def test_runs_that_differ_in_two_settings_or_scripts_are_not_compared():
    runs = [history(f"{n}", 0.4, seed=n, credit="turn", air=None) for n in range(3)]
    runs += [history(f"u{n}", 0.6, seed=n, credit="uniform", air=True) for n in range(3)]
    runs += [history(f"v{n}", 0.6, "other.py", seed=n, credit="uniform", air=None) for n in range(3)]
    assert advise(runs) == []


def test_the_interval_of_equal_numbers_is_a_point():
    assert difference_of([0.5] * 3, [0.75] * 3) == (0.25, 0.25, 0.25)


def test_a_trial_is_compared_task_by_task():
    def played(*rewards):
        return [
            rollout(
                place,
                reward,
                task=Task(id=task, input={}),
                status=Status.FAILED if reward is None else Status.SUCCEEDED,
            )
            for place, (task, reward) in enumerate(rewards)
        ]

    first = played(("x", 0.0), ("x", 1.0), ("y", None), ("z", 1.0))
    second = played(("x", 1.0), ("x", 1.0), ("y", 1.0), ("z", 1.0))
    made = compare_trials(first, second)
    assert made.tasks == {"y": (0.0, 1.0), "x": (0.5, 1.0), "z": (1.0, 1.0)}
    assert made.means == (0.5, 1.0)
    assert made.difference == 0.5
    assert (made.low, made.high) == (0.0, 1.0)
    assert compare_trials(first[:3], second).low is None
    assert compare_trials([], second).difference is None
