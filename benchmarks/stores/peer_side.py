"""The peer's side of the benchmark: Microsoft's `agentlightning`, its store in memory, its client over HTTP.

Runs in an environment of its own, which `benchmarks.stores.peer` makes:

server PORT                              serves until its input ends;
worker URL NUMBER                        runs empty rollouts until its input ends, one after another as its
                                         runner does, with the tracer that costs least;
operations URL SERVER_PID PLAN           measures the operations;
rollouts URL SERVER_PID COUNT PIDS       measures COUNT empty rollouts, which the workers PIDS run;
waiting URL SERVER_PID COUNT SECONDS     measures what it costs to wait;
gateway PORT SERVER ROLLOUTS             serves its LLM proxy before a vLLM server until its input ends.

Each measurement prints one line of JSON, the gateway the paths of its rollouts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any

from agentlightning.litagent import LitAgent
from agentlightning.runner import LitAgentRunner
from agentlightning.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer
from agentlightning.tracer.dummy import DummyTracer
from agentlightning.types import EnqueueRolloutRequest, Span

from benchmarks.processes import cpu_seconds
from benchmarks.stores.timing import BULK, CALLS_EACH, REQUEST, Callers, Costs, cost
from benchmarks.vllm_standin import MODEL

POLL_SECONDS = 0.05
"""Between two looks of its runner at an empty queue; 5 s unless set."""
SLICE_SECONDS = 0.1
"""The longest its client waits at once."""


async def server(port: str) -> None:
    store = LightningStoreServer(
        InMemoryLightningStore(), host="127.0.0.1", port=int(port), launch_mode="asyncio"
    )
    await store.start()
    await store.add_resources({})
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await store.stop()


class Empty(LitAgent[Any]):  # type: ignore[misc]
    async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        return 1.0


async def worker(url: str, number: str) -> None:
    runner: LitAgentRunner[Any] = LitAgentRunner(
        DummyTracer(), poll_interval=POLL_SECONDS, interval_jitter=0.0
    )
    runner.init(Empty())
    runner.init_worker(int(number), LightningStoreClient(url))
    serving = asyncio.create_task(runner.iter())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def operations(url: str, server_pid: str, plan: str) -> dict[str, Any]:
    asked = json.loads(plan)
    store, other = LightningStoreClient(url), LightningStoreClient(url)
    cpu = partial(cpu_seconds, int(server_pid))
    await store.enqueue_rollout({"i": -1}, mode="train")
    await store.dequeue_rollout("w")
    costs: Costs = {}
    for one in (Callers(**callers) for callers in asked["callers"]):
        costs[one.label] = await _queue(store, cpu, one)
    requests = [EnqueueRolloutRequest(input={"i": i}, mode="train") for i in range(BULK)]
    bulk = await cost(cpu, lambda number: store.enqueue_many_rollouts(requests), asked["bulks"], each=BULK)
    costs[asked["callers"][0]["label"]]["enqueue, 500 at once"] = bulk
    while await store.dequeue_many_rollouts(limit=BULK):
        continue
    wakes = [await _wake(store, other) for _ in range(asked["wakes"])]
    await asyncio.gather(store.close(), other.close())
    return {
        "costs": {label: {name: asdict(each) for name, each in by.items()} for label, by in costs.items()},
        "wakes": wakes,
    }


async def _queue(store: LightningStoreClient, cpu: Callable[[], float], asked: Callers) -> dict[str, Any]:
    held: list[Any] = []
    numbers = count()

    async def enqueue(number: int) -> None:
        await store.enqueue_rollout({"i": number}, mode="train")

    async def lease(number: int) -> None:
        held.append(await store.dequeue_rollout("w"))

    async def heartbeat(number: int) -> None:
        await store.update_worker("w", {"number": number})

    async def record(number: int) -> None:
        await store.add_span(call(held[number // CALLS_EACH], next(numbers)))

    async def read(number: int) -> None:
        found = await store.query_spans(held[number].rollout_id)
        if len(found) != CALLS_EACH:
            raise RuntimeError(f"{len(found)} spans of {CALLS_EACH} were found")

    async def finish(number: int) -> None:
        """As its runner does, with the reward as a span."""
        attempt = held[number].attempt
        place = await store.get_next_span_sequence_id(held[number].rollout_id, attempt.attempt_id)
        await store.add_span(span(held[number], place, "agentlightning.annotation", {"reward": 1.0}))
        await store.update_attempt(held[number].rollout_id, attempt.attempt_id, status="succeeded")

    return {
        "enqueue": await cost(cpu, enqueue, asked.count, asked.callers),
        "lease": await cost(cpu, lease, asked.count, asked.callers),
        "heartbeat": await cost(cpu, heartbeat, asked.count, asked.callers),
        "record a call": await cost(cpu, record, asked.count, asked.callers),
        "read 5 calls": await cost(cpu, read, asked.count // CALLS_EACH, asked.callers),
        "finish": await cost(cpu, finish, asked.count, asked.callers),
    }


def call(owner: Any, number: int) -> Span:
    """A call of 1,000 + 200 ids with logprobs, under the names that its proxy gives them."""
    attributes = {
        "gen_ai.prompt.0.content": REQUEST,
        "gen_ai.completion.0.content": "x" * 800,
        "prompt_token_ids": list(range(1000)),
        "response_token_ids": list(range(200)),
        "logprobs": [-0.5] * 200,
    }
    return span(owner, number, "openai.chat.completion", attributes)


def span(owner: Any, number: int, name: str, attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=owner.rollout_id,
        attempt_id=owner.attempt.attempt_id,
        sequence_id=number,
        name=name,
        start_time=1.0,
        end_time=2.0,
    )


async def _wake(store: LightningStoreClient, other: LightningStoreClient) -> float:
    await store.enqueue_rollout({"i": 0}, mode="train")
    (held,) = await store.dequeue_many_rollouts(limit=1)
    waiting = asyncio.create_task(wait(other, [held.rollout_id]))
    await asyncio.sleep(0.05)
    begun = time.perf_counter()
    await store.update_attempt(held.rollout_id, held.attempt.attempt_id, status="succeeded")
    await waiting
    return 1000 * (time.perf_counter() - begun)


async def wait(store: LightningStoreClient, ids: list[str]) -> None:
    while len(await store.wait_for_rollouts(rollout_ids=ids, timeout=SLICE_SECONDS)) < len(ids):
        continue


async def rollouts(url: str, server_pid: str, number: str, pids: str) -> dict[str, Any]:
    store, many = LightningStoreClient(url), int(number)

    def cpu() -> float:
        return sum(cpu_seconds(int(pid)) for pid in pids.split(","))

    await _round(store, 4)
    workers, served, wall = cpu(), cpu_seconds(int(server_pid)), time.perf_counter()
    await _round(store, many)
    wall = time.perf_counter() - wall
    served, workers = cpu_seconds(int(server_pid)) - served, cpu() - workers
    await store.close()
    return {
        "per_second": many / wall,
        "workers_ms": 1000 * workers / many,
        "server_ms": 1000 * served / many,
    }


async def _round(store: LightningStoreClient, many: int) -> None:
    requests = [EnqueueRolloutRequest(input={"i": i}, mode="train") for i in range(many)]
    asked = await store.enqueue_many_rollouts(requests)
    await wait(store, [one.rollout_id for one in asked])


async def waiting(url: str, server_pid: str, number: str, seconds: str) -> dict[str, Any]:
    store = LightningStoreClient(url)
    requests = [EnqueueRolloutRequest(input={"i": i}, mode="train") for i in range(int(number))]
    asked = await store.enqueue_many_rollouts(requests)
    task = asyncio.create_task(wait(store, [one.rollout_id for one in asked]))
    await asyncio.sleep(1.0)
    client, served = time.process_time(), cpu_seconds(int(server_pid))
    await asyncio.sleep(float(seconds))
    client, served = time.process_time() - client, cpu_seconds(int(server_pid)) - served
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.close()
    share = 1000 / float(seconds)
    return {"client_ms": client * share, "server_ms": served * share, "statements": None}


async def gateway(port: str, server: str, number: str) -> None:
    """All in one process: its proxy in a thread, and the store in memory without a server of its own."""
    from agentlightning.llm_proxy import LLMProxy  # imports litellm, which the other jobs need not

    store = InMemoryLightningStore(thread_safe=True)
    params = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{server}/v1"}
    models = [{"model_name": "m", "litellm_params": params}]
    begun = [await store.start_rollout({"i": i}, mode="train") for i in range(int(number))]
    paths = [f"/rollout/{one.rollout_id}/attempt/{one.attempt.attempt_id}" for one in begun]
    print(json.dumps(paths), flush=True)
    proxy = LLMProxy(int(port), models, store, "127.0.0.1", launch_mode="thread")
    await proxy.start()
    await asyncio.to_thread(sys.stdin.read)
    await proxy.stop()


def main() -> None:
    job, *arguments = sys.argv[1:]
    jobs: dict[str, Any] = {
        "server": server,
        "worker": worker,
        "operations": operations,
        "rollouts": rollouts,
        "waiting": waiting,
        "gateway": gateway,
    }
    found = asyncio.run(jobs[job](*arguments))
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
