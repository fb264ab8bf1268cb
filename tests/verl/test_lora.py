"""LoRA on verl: adapters are trained, what they amount to is served, and without them it is the reference."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.weights.sources import tiny_folder
from tests.backends.serving import ask
from tests.verl.conftest import import_verl
from tests.verl.test_backend import TOLERANCE, apart, exported, gap, sample, weights

pytestmark = pytest.mark.asyncio(loop_scope="module")
RATE = 1e-2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[Any]:
    from lightning_core.backends.verl.backend import VerlBackend

    import_verl()
    made = VerlBackend("tiny", gpus=1, lora=LoraOptions(rank=8), learning_rate=RATE, warmup_steps=0)
    await made.start()
    yield made
    await made.close()


async def test_adapters_are_trained_published_kept_and_merged(backend: Any, tmp_path: Path) -> None:
    batch = await sample(backend)
    first = await backend.update(Batch(0, batch), GRPO(kl=0.2))
    second = await backend.update(Batch(1, batch), GRPO(kl=0.2))
    assert first["kl_reference"] < 1e-6 < second["kl_reference"]
    await backend.publish()
    after = await exported(backend, tmp_path / "after")
    assert apart(after, weights(tiny_folder())) > 1e-3
    batch = await sample(backend)
    assert gap(tmp_path / "after", batch) < TOLERANCE
    await backend.save(tmp_path / "checkpoint")
    await backend.update(Batch(2, batch), GRPO())
    wanted = await exported(backend, tmp_path / "wanted")
    await backend.load(tmp_path / "checkpoint")
    await backend.update(Batch(2, batch), GRPO())
    assert apart(await exported(backend, tmp_path / "again"), wanted) == 0
    assert apart(wanted, after) > 1e-4


async def test_the_local_backend_serves_what_is_merged(backend: Any, tmp_path: Path) -> None:
    await backend.publish()
    await backend.export(tmp_path / "model")
    asked = {"max_tokens": 12, "temperature": 0.0}
    wanted = await ask(backend, "List the boats", **asked)
    made = LocalBackend(tmp_path / "model")
    await made.start()
    found = await ask(made, "List the boats", **asked)
    await made.close()
    assert found.ids == wanted.ids
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=TOLERANCE)
