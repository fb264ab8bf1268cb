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
from lightning_core.backends.vllm import VllmEngine
from tests.backends.serving import ask, plain_logprobs

HOT = 50.0
"""A temperature at which all tokens are alike, so that a reply does not come to an end soon."""


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread or process."""
    while not seen():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def changed(folder: Path, seed: int) -> Any:
    """The tiny model with other weights, written to the folder."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    shutil.copytree(tiny_folder(), folder)
    network.save_pretrained(folder)
    return network


async def all_agree(engine: VllmEngine, network: Any, version: int) -> None:
    """Every server answers by these weights, also to a prompt that it has answered before."""
    await asyncio.gather(*(agrees(engine, url, network) for url in engine.replicas.urls))
    assert (await ask(engine, "hello", max_tokens=3)).policy_version == version


async def agrees(engine: VllmEngine, url: str, network: Any) -> None:
    prompt = list(range(5, 60))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "logprobs": 0, "return_token_ids": True}
    said: Any = await engine.replicas.ask(url, "/v1/completions", body)
    choice = said["choices"][0]
    plain = plain_logprobs(network, prompt, choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain, abs=1e-3)
