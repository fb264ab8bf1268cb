"""Other workers serve than train: weights reach them by a checkpoint engine of verl's kind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import ray

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from tests.backends.serving import ask
from tests.verl.conftest import import_verl
from tests.verl.test_backend import TOLERANCE, gap, sample
from tests.verl.test_backend_killed import below, runs, servers, until

ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"


async def cancel_a_start(backend: Any) -> None:
    """In its midst, with Ray up; nothing of it is left."""
    starting = asyncio.create_task(backend.start())
    await until(ray.is_initialized)
    before = below()
    assert before
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not ray.is_initialized()
    await until(lambda: not any(map(runs, [*before, *below()])))


@pytest.mark.timeout(2700)
async def test_replies_go_on_during_an_update_and_a_server_that_is_killed_comes_back(tmp_path: Path) -> None:
    from lightning_core.backends.verl.backend import VerlBackend

    import_verl()
    overrides: dict[str, Any] = {
        f"{ENGINE}.backend": "gloo",
        f"{ENGINE}.custom_backend_module": "cpu_checkpoint",
    }
    backend = VerlBackend(
        "tiny", gpus=1, serving_gpus=1, context=1024, learning_rate=1e-3, overrides=overrides
    )
    backend.check(GRPO(staleness=1))
    await cancel_a_start(backend)
    await backend.start()
    try:
        assert backend.upstream.model.context == 1024
        batch = await sample(backend)
        updating = asyncio.create_task(backend.update(Batch(0, batch), GRPO()))
        asked = 0
        while not updating.done():
            assert (await ask(backend, "List the boats", max_tokens=4)).policy_version == 0
            asked += 1
        assert (await updating)["grad_norm"] > 0
        assert asked > 0
        assert await backend.publish() == 1
        await backend.export(tmp_path / "model")
        fresh = await sample(backend)
        assert {t.policy_version for each in fresh for t in each.transitions} == {1}
        assert gap(tmp_path / "model", fresh) < TOLERANCE
        assert gap(tmp_path / "model", batch) > 2 * TOLERANCE
        ((server, beneath),) = servers(backend)
        server.kill()
        fresh = await sample(backend)
        assert gap(tmp_path / "model", fresh) < TOLERANCE
        await until(lambda: not any(map(runs, [server, *beneath])))
        await backend.update(Batch(1, batch), GRPO())
        ((server, _),) = servers(backend)
        server.kill()
        server.wait()
        asking = asyncio.create_task(sample(backend))
        await until(lambda: backend._started.replicas.dead)
        assert await backend.publish() == 2  # it does not wait for whom nobody can answer before it
        await backend.export(tmp_path / "next")
        fresh = await asking
        assert {t.policy_version for each in fresh for t in each.transitions} == {2}
        assert gap(tmp_path / "next", fresh) < TOLERANCE
    finally:
        await backend.close()
