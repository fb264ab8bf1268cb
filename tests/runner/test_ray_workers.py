"""Refusals of `RayWorkers` before any cluster is asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lightning_core.errors import ConfigError
from lightning_core.records.types import Task
from lightning_core.runner.ray_workers import RaySlot, RayWorkers, parse_workers
from lightning_core.tracing.scope import Scope
from tests.runner import playing


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_cpu": 1}, "num_cpu"),
        ({"num_cpus": -1}, "num_cpus"),
        ({"max_restarts": 3}, "leave out .'max_restarts'"),
    ],
)
def test_an_option_that_can_t_be_honoured_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RayWorkers(1, options=options).pool(playing.play)


def test_a_number_of_workers_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="count=0"):
        RayWorkers(0)


def test_what_can_t_be_pickled_is_named() -> None:
    held = threading.Lock()

    def solve(task: Task) -> float:
        with held:
            return 1.0

    with pytest.raises(ConfigError, match=r"workers: 'solve' must .* its variable 'held' of 'solve'"):
        RayWorkers(1).pool(solve)


async def test_a_worker_of_another_machine_says_that_it_can_t_reach_a_gateway_of_this_one() -> None:
    slot = RaySlot(actor=None)
    slot.near = False
    here = Scope("r1", 1, "http://127.0.0.1:8000", "token")
    told = "the gateway is at 'http://127.0.0.1:8000', and a worker on another machine"
    with pytest.raises(ConfigError, match=told):
        await slot.run(here, Task(input={}), lambda: None)


def test_a_text_names_a_number_or_ray_with_a_number() -> None:
    assert [parse_workers("8"), parse_workers("ray:8")] == [8, RayWorkers(8)]
    for wrong in ("many", "ray", "ray:", "dask:8", "-1"):
        with pytest.raises(ConfigError, match="must be a number"):
            parse_workers(wrong)
