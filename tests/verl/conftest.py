"""One small real model for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.backends.models import save_model


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen3-architecture model."""
    return save_model(tmp_path_factory.mktemp("qwen") / "model", "qwen3")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more threads, and other tests run beside this one."""
    torch.set_num_threads(1)
