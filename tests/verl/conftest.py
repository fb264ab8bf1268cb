"""Shared fixtures of this folder: a small real model, and one started backend with two ranks."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from tests.backends.models import save_model

RATE, WARMUP = 3e-4, 2


def import_verl() -> None:
    """At their import verl, vLLM and Ray warn of one another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (
            "lightning_core.backends.verl.cluster",
            "verl.workers.rollout.vllm_rollout.vllm_async_server",
        ):
            importlib.import_module(name)


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen3-architecture model."""
    return save_model(tmp_path_factory.mktemp("qwen") / "model", "qwen3")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more threads, and other tests run beside this one."""
    torch.set_num_threads(1)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Any, Path]]:
    """A backend of two ranks and two servers on the shipped tiny model, and a checkpoint of its start."""
    from lightning_core.backends.verl.backend import VerlBackend

    import_verl()
    backend = VerlBackend("tiny", gpus=2, learning_rate=RATE, warmup_steps=WARMUP)
    await backend.start()
    try:
        folder = tmp_path_factory.mktemp("start") / "checkpoint"
        await backend.save(folder)
        yield backend, folder
    finally:
        await backend.close()


@pytest_asyncio.fixture(loop_scope="session")
async def backend(started: tuple[Any, Path]) -> Any:
    """The started backend, set back to its start."""
    made, folder = started
    await made.load(folder)
    return made
