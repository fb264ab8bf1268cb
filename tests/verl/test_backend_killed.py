"""Servers and workers of the started backend are killed: others answer, servers come back, errors say so."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import psutil
import ray

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from lightning_core.errors import BackendError, TrainingError
from lightning_core.records.types import Trajectory
from tests.backends.serving import as_transition, ask
from tests.verl.test_backend import TOLERANCE, gap, insist, sample

pytestmark = pytest.mark.asyncio(loop_scope="session")
LOOK_SECONDS = 0.05
REPLIES, TURNS = 16, 12


def processes(actors: list[Any]) -> list[tuple[psutil.Process, list[psutil.Process]]]:
    """The process of each actor, and those beneath it that are not its guard."""
    pids = ray.get([actor.__ray_call__.remote(lambda actor: os.getpid()) for actor in actors])
    return [
        (owner, [each for each in owner.children(recursive=True) if "guard.py" not in command_of(each)])
        for owner in map(psutil.Process, pids)
    ]


def command_of(process: psutil.Process) -> str:
    """Its command line; empty if it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def below() -> list[psutil.Process]:
    """The processes beneath this one, but those that try constraints, which outlive a backend."""
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "trial_process.py" not in command_of(each)]


def servers(backend: Any) -> list[tuple[psutil.Process, list[psutil.Process]]]:
    replicas = backend._started.cluster.servers.replicas
    return processes([server for replica in replicas for server in replica.servers])


async def until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110 - processes send no events
        await asyncio.sleep(LOOK_SECONDS)


async def rollouts(backend: Any, seed: int) -> list[asyncio.Task[Trajectory]]:
    """So many under way, on all servers."""
    draw = random.Random(seed)

    async def roll(number: int) -> Trajectory:
        prompt = [draw.randrange(5, 300) for _ in range(10)]
        transitions = []
        for turn in range(TURNS):
            reply = await insist(backend, [], prompt=prompt, max_tokens=60, attempt=(f"r{seed}-{number}", 1))
            assert reply.finish_reason in ("stop", "length")
            transitions.append(as_transition(reply, f"r{number}", f"c{turn}", advantage=1.0))
            prompt = [*prompt, *reply.ids, 7, 11, 13]
        return Trajectory(f"r{number}", "g", "t", 0.0, tuple(transitions))

    tasks = [asyncio.create_task(roll(number)) for number in range(REPLIES)]
    replicas = backend._started.replicas
    await until(
        lambda: (
            all(replica.running for replica in replicas._pool.replicas) or any(task.done() for task in tasks)
        )
    )
    assert not any(task.done() for task in tasks), "one has ended before all servers were at work"
    return tasks


@pytest.mark.timeout(2700)
async def test_killed_servers_come_back_and_their_requests_are_answered_when_sent_again(
    backend: Any, tmp_path: Path
) -> None:
    """Kills the process of one server that answers, and the engine behind another."""
    await backend.update(Batch(0, await sample(backend)), GRPO())
    await backend.publish()
    await backend.export(tmp_path / "model")
    (first, beneath), (second, engines) = servers(backend)
    tasks = await rollouts(backend, 1)
    first.kill()
    next(each for each in engines if each.name().startswith("VLLM::Engine")).kill()
    batch = await asyncio.gather(*tasks)
    assert len({each.rollout_id for each in batch}) == REPLIES
    assert gap(tmp_path / "model", batch) < TOLERANCE
    replicas = backend._started.replicas
    await until(lambda: not replicas.dead and len(set(replicas.urls)) == 2)
    await until(lambda: not any(map(runs, [first, *beneath, second, *engines])))
    again = await asyncio.gather(*await rollouts(backend, 2))
    assert {t.policy_version for each in again for t in each.transitions} == {1}
    assert gap(tmp_path / "model", again) < TOLERANCE
    assert await backend.publish() == 2
    assert {t.policy_version for t in (await sample(backend))[0].transitions} == {2}


async def test_a_server_that_ends_while_idle_is_started_again_before_it_is_to_sleep(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU verl's servers take the word to sleep and keep their memory; who says it can't tell."""
    monkeypatch.setattr(backend, "sleep", True)
    batch = await sample(backend)
    (first, _), _ = servers(backend)
    first.kill()
    first.wait()
    await backend.update(Batch(0, batch), GRPO())
    assert await backend.publish() == 1
    await backend.export(tmp_path / "model")
    assert gap(tmp_path / "model", await sample(backend)) < TOLERANCE


async def test_weights_of_a_step_are_not_served_before_they_are_published_if_a_replay_fails(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "sleep", True)
    batch = await sample(backend)
    spoilt = replace(
        batch[0], transitions=tuple(replace(t, advantage=float("nan")) for t in batch[0].transitions)
    )
    with pytest.raises(TrainingError):  # nothing was learnt: the servers go on as they were
        await backend.update(Batch(0, (spoilt, *batch[1:])), GRPO())
    assert (await ask(backend, "List the boats", max_tokens=4)).policy_version == 0
    await backend.update(Batch(0, batch), GRPO())
    with pytest.raises(TrainingError):
        await backend.update(Batch(0, (spoilt, *batch[1:])), GRPO())
    asking = asyncio.create_task(sample(backend))
    assert await backend.publish() == 1
    await backend.export(tmp_path / "model")
    fresh = await asking
    assert {t.policy_version for each in fresh for t in each.transitions} == {1}
    assert gap(tmp_path / "model", fresh) < TOLERANCE


async def test_a_killed_worker_is_told_and_a_checkpoint_goes_on_in_another_backend(
    backend: Any, tmp_path: Path
) -> None:
    """The last test of this backend: it is closed here."""
    batch = await sample(backend)
    await backend.update(Batch(0, batch), GRPO())
    await backend.save(tmp_path / "checkpoint")
    before = below()
    (worker, _), _ = processes(backend._started.cluster._policy.workers)
    worker.suspend()  # so that it is in the midst of it when it is killed
    try:
        updating = asyncio.create_task(backend.update(Batch(1, batch), GRPO()))
        await asyncio.sleep(LOOK_SECONDS)
        worker.kill()
        with pytest.raises(BackendError, match=r"an update was not made: .*resume the run"):
            await updating
    finally:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
        await backend.close()
    await until(lambda: not any(map(runs, before)))
    assert not ray.is_initialized()


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
