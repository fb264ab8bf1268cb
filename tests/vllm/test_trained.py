"""vLLM as the local backend's engine: it takes new weights in place, sleeps, and survives a kill."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("vllm")

import lightning_core as lightning
from examples.sql.prompts import write_prompt
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.exactness import plain_attention
from lightning_core.backends.vllm.trained import PREFIX, WeightsFolder
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.errors import ConfigError, ModelError, TrainingError, UnsupportedError
from lightning_core.runner.supervisor import descendants
from tests.backends.serving import Reply, ask, plain_logprobs, sample_batch, serving
from tests.vllm.weights import PROMPT, until

SQL: Any = write_prompt(
    "CREATE TABLE boats (id INTEGER, name TEXT, speed REAL);", "How many boats have speed above 12?"
)
ALGORITHM = lightning.GRPO()
NEAR = 1e-3
"""Nats between vLLM and transformers in float32."""


@pytest.fixture
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[LocalBackend]:
    options: dict[str, Any] = getattr(request, "param", {})
    async with serving(
        tiny_folder(), engine="vllm", max_batch=32, learning_rate=1e-2, warmup_steps=0, **options
    ) as made:
        yield made


async def ramble(backend: LocalBackend) -> Reply:
    """A reply whose tokens are not certain."""
    return await ask(backend, [], prompt=PROMPT, max_tokens=60)


async def greedy(backend: LocalBackend) -> Reply:
    return await ask(backend, SQL, temperature=0.0, max_tokens=40)


def trained(backend: LocalBackend, reply: Reply) -> list[float]:
    """Log-probabilities of a reply by the network under training."""
    network = backend._started.policy.base
    with plain_attention(network):
        return plain_logprobs(network, reply.prompt_ids, reply.ids)


async def improve(backend: LocalBackend) -> None:
    """An update large enough to be seen."""
    batch = Batch(0, await sample_batch(backend))
    await backend.update(batch, ALGORITHM)


@pytest.mark.parametrize("backend", [{}, {"lora": lightning.LoraOptions(rank=4)}], indirect=True)
async def test_it_answers_by_the_weights_that_were_published(backend: LocalBackend) -> None:
    async with serving(tiny_folder()) as local:
        ours, theirs = await greedy(local), await greedy(backend)
    assert (theirs.ids, theirs.text) == (ours.ids, ours.text)
    for version in (1, 2):
        await improve(backend)
        before = await ramble(backend)
        assert before.policy_version == version - 1
        assert before.logprobs != pytest.approx(trained(backend, before), abs=10 * NEAR)
        assert await backend.publish() == version
        after = await ramble(backend)
        assert (after.policy_version, after.logprobs) == (
            version,
            pytest.approx(trained(backend, after), abs=NEAR),
        )


async def test_a_server_that_was_killed_comes_back_with_the_published_weights(backend: LocalBackend) -> None:
    await improve(backend)
    await backend.publish()
    serving_by = backend._started.serving._server
    server, replicas = serving_by._server, serving_by._replicas
    assert server.pid is not None
    for pid in descendants(server.pid):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: bool(replicas.dead))
    reply = await ramble(backend)
    assert (reply.policy_version, reply.logprobs) == (1, pytest.approx(trained(backend, reply), abs=NEAR))


@pytest.mark.parametrize("backend", [{"sleep": True}], indirect=True)
async def test_requests_wait_while_it_sleeps(backend: LocalBackend) -> None:
    await improve(backend)
    waiting = asyncio.create_task(ramble(backend))
    assert not (await asyncio.wait([waiting], timeout=2))[0]
    await backend.publish()
    reply = await waiting
    assert (reply.policy_version, reply.logprobs) == (1, pytest.approx(trained(backend, reply), abs=NEAR))
    backend._started.policy.closing.set()
    batch = Batch(1, await sample_batch(backend, rollouts=2, turns=1))
    with pytest.raises(TrainingError):
        await backend.update(batch, ALGORITHM)
    assert (await ask(backend, SQL, max_tokens=5)).policy_version == 1


async def test_a_run_goes_on_from_its_checkpoint(backend: LocalBackend, tmp_path: Path) -> None:
    await improve(backend)
    await backend.publish()
    await backend.save(tmp_path / "checkpoint")
    saved = await greedy(backend)
    await improve(backend)
    await backend.publish()
    await backend.load(tmp_path / "checkpoint")
    again = await greedy(backend)
    assert (again.ids, again.policy_version) == (saved.ids, 1)
    assert again.logprobs == pytest.approx(saved.logprobs, abs=1e-5)


async def test_a_server_with_other_weights_than_those_trained_is_refused(backend: LocalBackend) -> None:
    """A reload without effect would leave the server with its old weights."""
    parts = backend._started
    old = {name: weight.clone() for name, weight in parts.policy.base.state_dict().items()}
    with torch.no_grad():
        for parameter in parts.policy.parameters:
            parameter.mul_(1.1)
    with pytest.raises(ModelError, match="can't be served exactly"):
        await parts.serving.refresh(old, 1)


async def test_a_network_that_ties_nothing_is_served_too(tmp_path: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)
    network.config.tie_word_embeddings = False
    network.lm_head.weight = torch.nn.Parameter(1.1 * network.lm_head.weight.detach())
    shutil.copytree(tiny_folder(), tmp_path / "model")
    network.save_pretrained(tmp_path / "model")
    async with serving(tmp_path / "model", engine="vllm", max_batch=8) as backend:
        reply = await ramble(backend)
        assert reply.logprobs == pytest.approx(trained(backend, reply), abs=NEAR)


def test_what_can_not_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match="engine='llama' is not one of torch, vllm"):
        LocalBackend("tiny", engine="llama")
    with pytest.raises(ConfigError, match="sleep=True frees the memory of vLLM"):
        LocalBackend("tiny", sleep=True)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        LocalBackend("tiny", engine="vllm", device="cuda:1")
    sleeping = LocalBackend("tiny", engine="vllm", sleep=True)
    with pytest.raises(UnsupportedError, match="give sleep=False"):
        sleeping.check(lightning.GRPO(staleness=1))


HOLDER = """
import sys, time
from lightning_core.backends.local.exactness import plain_attention
from lightning_core.backends.vllm.trained import WeightsFolder

print(WeightsFolder(1)._path, flush=True)
time.sleep(600)
"""


def test_the_folder_of_a_killed_process_is_deleted_and_that_of_a_living_one_is_not() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        folder = Path(holder.stdout.readline().strip())
        old = time.time() - 3600
        os.utime(folder / "lock", (old, old))
        WeightsFolder(1).close()
        assert folder.name.startswith(PREFIX)
        assert folder.is_dir()
        holder.kill()
    WeightsFolder(1).close()
    assert not folder.exists()
