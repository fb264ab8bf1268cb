"""The pool of worker processes: warm, counted, and replaced when one is lost."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.runner.executor import make_executor
from lightning_core.runner.processes import Processes
from lightning_core.runner.ray_actors import RayActors
from lightning_core.types import Status, Task
from tests.runner import playing
from tests.runner.stage import lives, rollouts, stage

ONE = Processes(workers=1, grace=0.2)


async def test_a_process_serves_rollout_after_rollout_on_one_loop() -> None:
    async with stage(ONE, playing.play) as at:
        finished = await at.play(rollouts("keeping_its_client", 5))
    assert {one.error for one in finished} == {None}
    assert len({one.reward for one in finished}) == 1


async def test_there_are_no_more_processes_than_asked_for_and_none_afterwards() -> None:
    async with stage(Processes(workers=2), playing.play, concurrency=8) as at:
        finished = await at.play(rollouts("process_id", 12))
        assert at.runner.concurrency == 2
        pids = {int(one.reward or 0) for one in finished}
        assert 1 <= len(pids) <= 2
        assert all(lives(pid) for pid in pids)
    assert not any(lives(pid) for pid in pids)


async def test_a_process_that_dies_is_an_error_of_its_rollout_and_is_replaced() -> None:
    ends = {
        "exit": "ended with exit code 7",
        "segfault": "was killed by signal 11 (SIGSEGV)",
        "memory": "was killed by signal 9 (SIGKILL) (as the kernel does when memory runs out)",
    }
    async with stage(ONE, playing.play) as at:
        dying = [rollouts("dying", 1, by=by)[0] for by in ends]
        *failed, done = await at.play([*dying, *rollouts("reward", 1)])
    for end, one in zip(ends.values(), failed, strict=True):
        assert f"the worker process of task {one.task.id!r} {end}" in str(one.error)
        assert "last words of 0" in str(one.error)
    assert (done.status, done.reward) == (Status.SUCCEEDED, 0.0)


async def test_what_the_app_starts_has_no_line_to_the_runner() -> None:
    async with stage(ONE, playing.play_in_thread) as at:
        (done,) = await at.play(rollouts("bequeathing", 1))
    assert (done.error, done.reward) == (None, 0.0)


async def test_a_function_of_a_script_goes_with_what_it_refers_to() -> None:
    factor = 3.0

    def solve(task: Task) -> float:
        return factor * playing.reward(task)

    async with stage(ONE, solve) as at:
        finished = await at.play(rollouts("any", 3))
    assert [one.reward for one in finished] == [0.0, 3.0, 6.0]


@pytest.mark.parametrize("options", [{"workers": 0}, {"grace": -1.0}, {"grace": float("nan")}])
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Processes(**options)


def test_an_executor_is_named_or_given() -> None:
    plugins = load_plugins([])
    assert make_executor("processes", plugins) == Processes()
    assert make_executor(ONE, plugins) is ONE
    assert make_executor("ray", plugins) == RayActors()
    with pytest.raises(ConfigError, match="did you mean 'processes'"):
        make_executor("process", plugins)
    for wrong in (Processes, 3):
        with pytest.raises(ConfigError, match="is no executor"):
            make_executor(wrong, plugins)  # type: ignore[arg-type]
