"""The pool of worker processes: warm, counted, and replaced when one is lost."""

from __future__ import annotations

import pytest

from lightning_core.errors import ConfigError
from lightning_core.records.types import Status, Task
from lightning_core.runner.runner import prepare
from tests.runner import playing
from tests.runner.served import lives, rollouts, serve_runner


async def test_a_process_serves_rollout_after_rollout_on_one_loop() -> None:
    async with serve_runner(1, playing.play) as at:
        finished = await at.play(rollouts("keeping_its_client", 5))
    assert {one.error for one in finished} == {None}
    assert len({one.reward for one in finished}) == 1


async def test_there_are_no_more_processes_than_asked_for_and_none_afterwards() -> None:
    async with serve_runner(2, playing.play, concurrency=8) as at:
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
    async with serve_runner(1, playing.play) as at:
        dying = [rollouts("dying", 1, by=by)[0] for by in ends]
        *failed, done = await at.play([*dying, *rollouts("reward", 1)])
    for end, one in zip(ends.values(), failed, strict=True):
        assert f"the worker process of task {one.task.id!r} {end}" in str(one.error)
        assert "last words of 0" in str(one.error)
    assert (done.status, done.reward) == (Status.SUCCEEDED, 0.0)


async def test_what_the_app_starts_has_no_line_to_the_runner() -> None:
    async with serve_runner(1, playing.play_in_thread) as at:
        (done,) = await at.play(rollouts("bequeathing", 1))
    assert (done.error, done.reward) == (None, 0.0)


async def test_a_function_of_a_script_goes_with_what_it_refers_to() -> None:
    factor = 3.0

    def solve(task: Task) -> float:
        return factor * playing.reward(task)

    async with serve_runner(1, solve) as at:
        finished = await at.play(rollouts("any", 3))
    assert [one.reward for one in finished] == [0.0, 3.0, 6.0]


def test_a_number_of_workers_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        prepare(playing.play, 0)
