"""Other weights for the tiny model, and whether servers answer by them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.backends.chat.folder import tiny_folder
from lightning_core.backends.vllm.engine import VllmEngine
from tests.backends.serving import ask, plain_logprobs

PROMPT = list(range(5, 60))
"""What `rambling` weights talk about for a thousand tokens or so."""


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread or process."""
    while not seen():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def changed(folder: Path, seed: int) -> Any:
    """The tiny model with other weights, written to the folder."""
    torch.manual_seed(seed)
    network = tiny()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    return write(network, folder)


def rambling(folder: Path) -> Any:
    """The tiny model without a liking for the tokens that end a reply, written to the folder."""
    network = tiny()
    with torch.no_grad():
        network.get_input_embeddings().weight[:3] = 0.0
    return write(network, folder)


def tiny() -> Any:
    """The network that the servers start with."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)


def write(network: Any, folder: Path) -> Any:
    """Save it beside the tiny model's tokenizer."""
    shutil.copytree(tiny_folder(), folder)
    network.save_pretrained(folder)
    return network


async def all_agree(engine: VllmEngine, network: Any, version: int) -> None:
    """Every server answers by these weights, also to a prompt that it has answered before."""
    await asyncio.gather(*(agrees(engine, url, network) for url in engine.replicas.urls))
    assert (await ask(engine, "hello", max_tokens=3)).policy_version == version


async def agrees(engine: VllmEngine, url: str, network: Any) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "logprobs": 0, "return_token_ids": True}
    said: Any = await engine.replicas.ask(url, "/v1/completions", body)
    choice = said["choices"][0]
    plain = plain_logprobs(network, PROMPT, choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain, abs=1e-3)
