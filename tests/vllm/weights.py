"""A network that talks at length, and two real servers of vLLM that answer by it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.backends.vllm.client import Client
from lightning_core.backends.vllm.server import VllmServer
from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream
from lightning_core.backends.weights.sources import tiny_folder
from tests.backends.serving import plain_logprobs

PROMPT = list(range(5, 60))
"""A prompt after which `rambling` weights go on for a thousand tokens or so."""


@dataclass
class Servers:
    """Two servers as one engine, started again when their processes end."""

    servers: list[VllmServer]
    network: Any
    """The network whose weights answer."""
    replicas: Replicas
    upstream: VllmUpstream


def sent(replicas: Replicas) -> dict[str, int]:
    """Replies that each server was ever asked for."""
    return {replica.url: replica.sent for replica in replicas._pool.replicas}


def running(replicas: Replicas) -> dict[str, int]:
    """Replies in flight at each."""
    return {replica.url: replica.running for replica in replicas._pool.replicas}


def waiting(replicas: Replicas) -> dict[str, int]:
    """Replies that wait for their turn at each."""
    return {replica.url: replica.waiting for replica in replicas._pool.replicas}


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread or process."""
    while not seen():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def rambling(folder: Path) -> Any:
    """The tiny model without a liking for the tokens that end a reply, written to the folder."""
    torch.set_num_threads(1)
    network: Any = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)
    with torch.no_grad():
        network.get_input_embeddings().weight[:3] = 0.0
    shutil.copytree(tiny_folder(), folder)
    network.save_pretrained(folder)
    return network


async def agrees(url: str, network: Any) -> None:
    """A server answers by these weights."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "logprobs": 0, "return_token_ids": True}
    asking = Client()
    choice = (await asking.ask(url, "/v1/completions", body, 60.0))["choices"][0]
    await asking.close()
    plain = plain_logprobs(network, PROMPT, choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain, abs=1e-3)
