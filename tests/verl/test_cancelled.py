"""A start that is cancelled on a Ray that was there before: its GPUs are free again, and Ray goes on."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import ray

from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.verl.resources import COLOCATED
from tests.verl.conftest import import_verl
from tests.verl.test_backend_killed import until


@pytest.fixture
def cluster() -> Iterator[None]:
    """Starts a cluster of one GPU."""
    import_verl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=COLOCATED, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def free() -> bool:
    return bool(ray.available_resources().get("GPU"))


@pytest.mark.usefixtures("cluster")
async def test_a_start_that_is_cancelled_gives_its_gpus_back() -> None:
    starting = asyncio.create_task(VerlBackend("tiny", gpus=1).start())
    await until(lambda: starting.done() or not free())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(free)
