"""Run one graph in many rollouts at once, by each of LangGraph's four entrances."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from langchain_core.messages import HumanMessage
from lightning_langgraph import LightningCallback

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, rollout_scope

Entrance = Literal["invoke", "stream", "ainvoke", "astream"]
ENTRANCES: tuple[Entrance, ...] = ("invoke", "stream", "ainvoke", "astream")
ROLLOUTS = 4
"""At once; `tests.proof` runs 200."""


def scope_at(server: GatewayDouble, rollout: str = "r1") -> Scope:
    return Scope(rollout, 1, server.url, f"token-of-{rollout}")


def given(rollout: str) -> dict[str, Any]:
    """Returns the initial state of every graph here."""
    return {"rollout": rollout, "messages": [HumanMessage(mark(rollout=rollout))]}


async def play(graph: Any, server: GatewayDouble, entrance: Entrance, rollouts: int = ROLLOUTS) -> None:
    """All rollouts at once, with the callback attached."""
    graph = graph.with_config(callbacks=[LightningCallback()])
    names = [f"r{index}" for index in range(rollouts)]
    if entrance in ("ainvoke", "astream"):
        await asyncio.gather(*(_arun(graph, scope_at(server, name), entrance) for name in names))
        return
    with ThreadPoolExecutor(rollouts) as pool:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(pool, _run, graph, scope_at(server, name), entrance) for name in names]
        await asyncio.gather(*jobs)


def _run(graph: Any, scope: Scope, entrance: Entrance) -> None:
    with rollout_scope(scope):
        if entrance == "invoke":
            graph.invoke(given(scope.rollout_id))
        else:
            for _ in graph.stream(given(scope.rollout_id), stream_mode="messages"):
                pass


async def _arun(graph: Any, scope: Scope, entrance: Entrance) -> None:
    with rollout_scope(scope):
        if entrance == "ainvoke":
            await graph.ainvoke(given(scope.rollout_id))
        else:
            async for _ in graph.astream(given(scope.rollout_id), stream_mode="messages"):
                pass


def expect(server: GatewayDouble, per_rollout: dict[str, int], rollouts: int = ROLLOUTS) -> None:
    """Every tag is right, and each agent made just as many calls as it should have."""
    assert server.mistakes() == []
    assert server.agents() == Counter({name: count * rollouts for name, count in per_rollout.items()})
    calls = Counter(request.tagged().call for request in server.seen if request.status == 200)
    assert set(calls.values()) == {1}
