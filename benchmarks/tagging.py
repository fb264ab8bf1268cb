"""What tagging adds to one request, in microseconds: `python -m benchmarks.tagging`. The goal is 50 µs.

Times `_build_request` alone, the SDK's step in which a request is tagged and routed; nothing is sent. Every
round measures all situations after one another, so that what disturbs the machine disturbs them alike, and
the cost of a situation is its CPU time less that of the bare SDK in the same round.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
from langchain_core.callbacks import CallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from lightning_langgraph import LightningCallback
from openai import OpenAI
from openai._models import FinalRequestOptions

from lightning_core.plugins import load_plugins
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, agent, rollout_scope

ROUNDS, REQUESTS = 40, 250
GOAL = 50.0
Build = Callable[[], object]


def main() -> None:
    rounds: dict[str, list[float]] = {}
    with OpenAI(api_key="none") as routed, OpenAI(api_key="sk-mine") as hosted:
        for _ in range(ROUNDS):
            for name, microseconds in _round(_builder(routed), _builder(hosted)):
                rounds.setdefault(name, []).append(microseconds)
    bare = rounds["bare SDK"]
    results = {}
    for name, times in rounds.items():
        added = statistics.median(time - base for time, base in zip(times, bare, strict=True))
        results[name] = {"median": statistics.median(times), "added": added}
        print(f"{name:<36} {results[name]['median']:7.1f} µs   added {added:6.1f} µs")
    record = {"goal_added": GOAL, "openai": openai.__version__, "microseconds": results}
    path = Path(__file__).parent / "results" / "tagging.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _round(routed: Build, hosted: Build) -> Iterator[tuple[str, float]]:
    scope = Scope("r" * 16, 1, "http://127.0.0.1:8000", "t" * 60, ("write_*", "node"))
    yield "bare SDK", _time(routed)
    with instrument(load_plugins(["langgraph"]).who):
        yield "outside a rollout", _time(routed)
        with rollout_scope(scope), agent("check"):
            yield "untrained agent, hosted endpoint", _time(hosted)
        with rollout_scope(scope), agent("write_query"):
            yield "trained agent, block", _time(routed)
        with rollout_scope(scope), _node():
            yield "trained agent, LangGraph node", _time(routed)


def _time(build: Build) -> float:
    start = time.thread_time()
    for _ in range(REQUESTS):
        build()
    return (time.thread_time() - start) / REQUESTS * 1e6


def _builder(client: OpenAI) -> Build:
    messages = [{"role": "user", "content": "How many singers are there?" * 20}]
    options: Any = FinalRequestOptions.construct(
        method="post",
        url="/chat/completions",
        json_data={"model": "any", "messages": messages},
        idempotency_key="stainless-python-retry-0123456789",
        security={"bearer_auth": True},
    )
    return lambda: client._build_request(options)


@contextmanager
def _node() -> Iterator[None]:
    """The context that LangGraph gives a node."""
    metadata = {"langgraph_node": "node", "langgraph_checkpoint_ns": "graph:0123456789|node:0123456789"}
    callbacks = CallbackManager([LightningCallback()])
    with ExitStack() as stack:
        token = var_child_runnable_config.set({"metadata": metadata, "callbacks": callbacks})
        stack.callback(var_child_runnable_config.reset, token)
        yield


if __name__ == "__main__":
    main()
