"""Small real models, made here: random weights, and a tokenizer trained on a few lines of text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.backends.models import save_model


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen3-architecture model, tied embeddings, grouped heads."""
    return save_model(tmp_path_factory.mktemp("qwen") / "model", "qwen3")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama-architecture model, separate output layer."""
    return save_model(tmp_path_factory.mktemp("llama") / "model", "llama")


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random GPT-2: learned positions, no rotary angles, runs through the general decoder."""
    return save_model(tmp_path_factory.mktemp("gpt2") / "model", "gpt2")


@pytest.fixture(scope="session")
def qwen35(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen3.5 text network: linear attention in three layers of four."""
    return save_model(tmp_path_factory.mktemp("qwen35") / "model", "qwen3_5_text", scale=4.0)


@pytest.fixture(params=["qwen", "llama", "gpt2"])
def folder(request: pytest.FixtureRequest) -> Path:
    """Each architecture in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more threads, and other tests run beside this one."""
    torch.set_num_threads(1)
