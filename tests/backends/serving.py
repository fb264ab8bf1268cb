"""A started backend, and asking it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import torch

from lightning_core.backends.local import LocalBackend
from lightning_core.dialects.upstream import ChatRequest, Delta, Upstream
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Rollout, Sampling, Task, Trajectory, Transition
from lightning_core.stores.sqlite import MemoryStore


@dataclass
class Reply:
    """Everything one choice gave."""

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    best: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str | None = None
    policy_version: int | None = None
    kept: list[bytes] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)


class Served(Protocol):
    """A backend or an engine that answers requests."""

    @property
    def upstream(self) -> Upstream: ...


@asynccontextmanager
async def serving(
    folder: Path, *, merge: bool = True, seed: int = 0, **options: Any
) -> AsyncIterator[LocalBackend]:
    """A started backend on one thread; closed at the end."""
    backend = LocalBackend(folder, **options)
    backend.prefix_sharing, backend.seed = merge, seed
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def user(text: str) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


async def ask_all(backend: Served, messages: list[dict[str, Any]], **options: Any) -> list[Reply]:
    """All choices of a request, read to their end."""
    generation = await backend.upstream.chat(ChatRequest(messages, **options))
    replies = [Reply(generation.prompt_ids) for _ in range(options.get("n", 1))]
    async for delta in generation:
        reply = replies[delta.choice]
        reply.deltas.append(delta)
        reply.ids += delta.token_ids
        reply.logprobs += delta.logprobs
        reply.kept += delta.kept or []
        reply.text += delta.text
        reply.tool_calls += delta.tool_calls or []
        reply.best += delta.top_logprobs or []
        reply.finish_reason = delta.finish_reason or reply.finish_reason
        reply.policy_version = generation.policy_version
    return replies


async def ask(backend: Served, messages: list[dict[str, Any]] | str, **options: Any) -> Reply:
    """The reply to a request of one choice."""
    messages = user(messages) if isinstance(messages, str) else messages
    return (await ask_all(backend, messages, **options))[0]


def plain_logprobs(
    network: Any, prompt: list[int], reply: list[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of a reply by transformers' own forward pass."""
    with torch.no_grad():
        logits = network(torch.tensor([prompt + reply])).logits[0] / temperature
    at = torch.arange(len(reply)) + len(prompt) - 1
    chosen: list[float] = logits.log_softmax(-1)[at, torch.tensor(reply)].tolist()
    return chosen


async def sample_batch(backend: LocalBackend, rollouts: int = 4, turns: int = 2) -> tuple[Trajectory, ...]:
    """Rollouts sampled from the backend, half of them praised and half blamed."""
    trajectories = []
    for r in range(rollouts):
        messages, transitions = user("hello"), []
        for turn in range(turns):
            reply = await ask(backend, messages, max_tokens=12)
            transitions.append(as_transition(reply, f"r{r}", f"c{turn}", advantage=1.0 - 2 * (r % 2)))
            messages = [*messages, {"role": "assistant", "content": reply.text}, *user("go on")]
        trajectories.append(Trajectory(f"r{r}", "g", "t", 0.0, tuple(transitions)))
    return tuple(trajectories)


def as_transition(
    reply: Reply, rollout: str, call: str, *, advantage: float | None, **options: Any
) -> Transition:
    """Makes a transition of a recorded reply, as the trainer does."""
    assert reply.policy_version is not None
    return Transition(
        rollout, call, 0, "agent", True, reply.prompt_ids, reply.ids, reply.logprobs, reply.policy_version,
        advantage=advantage, **options,
    )  # fmt: skip


@asynccontextmanager
async def gateway(
    backend: Served, *, agents: tuple[str, ...] | None = None, sampling: Sampling | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, MemoryStore]]:
    """A client with a rollout's token, of a gateway in front of the backend, and the store behind it."""
    store, tokens = MemoryStore(), Tokens(b"0123456789abcdef")
    task, sampling = Task(input={"q": 1}), sampling or Sampling()
    rollout = Rollout(id="r1", run_id="run", task=task, group_id="g", step=0, sampling=sampling)
    await store.enqueue([rollout])
    await store.lease("worker", 1, 600.0)
    headers = {"authorization": f"Bearer {tokens.issue(rollout, 1)}"}
    async with (
        GatewayServer(Gateway(backend.upstream, store, tokens, agents=agents)) as server,
        httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as web,
    ):
        yield web, store
