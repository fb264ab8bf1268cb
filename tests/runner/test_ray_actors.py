"""What `RayActors` refuses before any cluster is asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lightning_core.errors import ConfigError
from lightning_core.runner.ray_actors import RayActors, RayPlace
from lightning_core.tracing.scope import Scope
from lightning_core.types import Task
from tests.runner import playing


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_cpu": 1}, "num_cpu"),
        ({"num_cpus": -1}, "num_cpus"),
        ({"max_restarts": 3}, "'max_restarts'. are not yours"),
    ],
)
def test_an_option_that_ray_or_the_executor_can_t_honour_is_refused(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        RayActors(options=options).crew(playing.play, 1)


def test_a_number_of_workers_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        RayActors(workers=0)


def test_what_can_t_be_pickled_is_named() -> None:
    held = threading.Lock()

    def solve(task: Task) -> float:
        with held:
            return 1.0

    with pytest.raises(ConfigError, match=r"executor='ray' needs .* its variable 'held' of 'solve'"):
        RayActors().crew(solve, 1)


async def test_an_actor_of_another_machine_says_that_it_can_t_reach_a_gateway_of_this_one() -> None:
    place = RayPlace(actor=None)
    place.near = False
    here = Scope("r1", 1, "http://127.0.0.1:8000", "token")
    told = "the gateway is at 'http://127.0.0.1:8000', and the actor on another machine"
    with pytest.raises(ConfigError, match=told):
        await place.run(here, Task(input={}), lambda: None)
