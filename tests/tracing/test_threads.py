"""An app's own threads and pools keep the rollout and the agent, and give them up with the rollout."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import pytest

from lightning_core.tracing.scope import (
    Scope,
    agent,
    carry_into_threads,
    current_agent,
    current_scope,
    rollout_scope,
)


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    undo = carry_into_threads()
    yield
    undo()


def scope(rollout: str = "r1") -> Scope:
    return Scope(rollout, 1, "http://gateway", "token")


def seen() -> tuple[str | None, str | None]:
    """The rollout and agent of the context this runs in."""
    here, who = current_scope(), current_agent()
    return here.rollout_id if here else None, who.agent if who else None


def in_thread(function: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_carries_rollout_and_agent() -> None:
    with rollout_scope(scope()), agent("writer"):
        assert in_thread(seen) == ("r1", "writer")
        assert in_thread(lambda: in_thread(seen)) == ("r1", "writer")


def test_a_thread_subclass_and_a_timer_carry_them_too() -> None:
    results: list[object] = []

    class Worker(threading.Thread):
        def run(self) -> None:
            results.append(seen())

    with rollout_scope(scope()):
        for thread in (Worker(), threading.Timer(0, lambda: results.append(seen()))):
            thread.start()
            thread.join()
    assert results == [("r1", None), ("r1", None)]


def test_a_pool_shared_by_rollouts_never_mixes_them() -> None:
    with ThreadPoolExecutor(2) as pool:
        for rollout in ("r1", "r2", "r3"):
            with rollout_scope(scope(rollout)), agent(rollout):
                assert set(pool.map(lambda _: seen(), range(8))) == {(rollout, rollout)}


def test_a_worker_started_in_a_rollout_does_not_keep_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        with rollout_scope(scope("r1")):
            assert pool.submit(seen).result() == ("r1", None)  # starts the worker
            with rollout_scope(scope("r2")):
                assert pool.submit(seen).result() == ("r2", None)
            assert Context().run(pool.submit, seen).result() == (None, None)  # r1 still runs
        assert pool.submit(seen).result() == (None, None)


async def test_the_default_executor_of_a_loop_carries_them() -> None:
    with rollout_scope(scope()), agent("writer"):
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, seen) == ("r1", "writer")
        assert await asyncio.to_thread(seen) == ("r1", "writer")


def test_a_thread_that_outlives_its_rollout_belongs_to_none() -> None:
    ended, results = threading.Event(), []

    def outlive() -> None:
        ended.wait()
        results.append(seen())

    thread = threading.Thread(target=outlive)
    with rollout_scope(scope()):
        thread.start()
    ended.set()
    thread.join()
    assert results == [(None, None)]


def test_outside_a_rollout_a_thread_starts_empty_as_ever() -> None:
    with agent("writer"), ThreadPoolExecutor(1) as pool:
        assert in_thread(seen) == (None, None)
        assert pool.submit(seen).result() == (None, None)


def test_an_exception_and_a_result_pass_through() -> None:
    with rollout_scope(scope()), ThreadPoolExecutor(1) as pool:
        assert pool.submit(int, "11", base=2).result() == 3
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()


def test_the_originals_come_back_when_the_last_one_leaves() -> None:
    placed = (ThreadPoolExecutor.submit, threading.Thread.start)
    undo = carry_into_threads()
    assert (ThreadPoolExecutor.submit, threading.Thread.start) == placed
    undo()
    undo()
    assert hasattr(ThreadPoolExecutor.submit, "__wrapped__")


def test_uninstalled_threads_are_pythons_own() -> None:
    program = (
        "from threading import Thread; from concurrent.futures import ThreadPoolExecutor as P\n"
        "from lightning_core.tracing.scope import carry_into_threads\n"
        "before = Thread.start, P.submit\n"
        "undo = carry_into_threads(); assert (Thread.start, P.submit) != before; undo()\n"
        "assert (Thread.start, P.submit) == before"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
