"""The measured side of `benchmarks.gateway`: an engine that answers from memory, and a gateway in front.

python -m benchmarks.gateway_server URL [SERVER] serves with the store at that URL until its input ends.
SERVER is the address of a vLLM server, or of `benchmarks.vllm_standin`, that takes the place of the engine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from benchmarks.vllm_standin import MODEL
from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream
from lightning_core.dialects.upstream import ChatRequest, Delta
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Rollout, Task
from lightning_core.trainer.parts import open_store

PROMPT = 1000
COMPLETION = 200
ROLLOUTS = [
    Rollout(id=f"bench{number}", run_id="bench", task=Task(input={}), group_id="bench", step=0)
    for number in range(500)
]


class CannedEngine:
    """Gives the same reply at once, one delta for each token, as a real engine's steps do."""

    model_name = "canned"

    def __init__(self) -> None:
        self.prompt_ids = [1000 + index for index in range(PROMPT)]
        self.deltas = [Delta(0, [i], [-0.25 - i / 777], f"w{i} ") for i in range(COMPLETION - 1)]
        self.deltas.append(Delta(0, [COMPLETION - 1], [-0.125], finish_reason="stop"))

    async def chat(self, request: ChatRequest) -> CannedGeneration:
        return CannedGeneration(list(self.prompt_ids), self.deltas)

    async def count(self, request: ChatRequest) -> int:
        return len(self.prompt_ids)

    def decode(self, token_id: int) -> str:
        return f"w{token_id} "


class CannedGeneration:
    policy_version = 1
    grammar: str | None = None

    def __init__(self, prompt_ids: list[int], deltas: list[Delta]) -> None:
        self.prompt_ids = prompt_ids
        self._deltas = deltas

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self._deltas:
            yield delta

    async def aclose(self) -> None:
        pass


def over_vllm(server: str) -> VllmUpstream:
    """SmolLM2's template and tokenizer before a server of that address."""
    return VllmUpstream("smollm2", Replicas([server], MODEL))


async def serve(url: str, server_url: str | None = None) -> None:
    """Serve until the input ends."""
    tokens = Tokens(b"only for benchmarks")
    async with open_store(url, load_plugins()) as store:
        await store.enqueue(ROLLOUTS)
        await store.lease("bench", len(ROLLOUTS), 3600.0)
        engine = CannedEngine() if server_url is None else over_vllm(server_url)
        gateway = Gateway(engine, store, tokens, agents=None)
        async with GatewayServer(gateway) as server:
            keys = [tokens.issue(rollout, 1) for rollout in ROLLOUTS]
            print(json.dumps({"url": server.url, "tokens": keys}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
