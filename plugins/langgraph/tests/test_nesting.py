"""Bare clients, pools, blocks and handed-on configs inside a graph: the innermost scope names the call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from lightning_langgraph import LightningCallback
from openai import OpenAI

from lightning_core.records.types import UNNAMED
from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import agent, current_scope, rollout_scope
from plugins.langgraph.tests import apps
from plugins.langgraph.tests.apps import State, prompt
from plugins.langgraph.tests.playing import ENTRANCES, ROLLOUTS, expect, given, play, scope_at


def graph_of(**nodes: Callable[..., Any]) -> Any:
    """The nodes one after the other."""
    graph = StateGraph(State)
    for before, (name, node) in zip((START, *nodes), nodes.items(), strict=False):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    return graph.compile()


def run(graph: Any, gateway: GatewayDouble) -> None:
    """Once, with the callback."""
    with rollout_scope(scope_at(gateway)):
        graph.with_config(callbacks=[LightningCallback()]).invoke(given("r1"))


def bare(client: OpenAI, name: str, rollout: str = "r1") -> None:
    message = {"role": "user", "content": mark(rollout=rollout, agent=name)}
    client.chat.completions.create(model="any", messages=[message])  # type: ignore[list-item]


async def test_a_bare_client_in_a_node_is_named_after_it(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none") as client:
        node = lambda state: bare(client, "node", state["rollout"])  # noqa: E731
        await play(graph_of(node=node), gateway, "invoke")
    expect(gateway, {"node": 1})


def test_an_edge_has_the_name_of_the_node_before_it_and_a_block_in_it_wins(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    def decide(state: State) -> str:
        llm.invoke(prompt(state, "write"))
        with agent("grader"):
            llm.invoke(prompt(state, "grader"))
        return END

    graph = StateGraph(State)
    graph.add_node("write", lambda _: {"done": []})
    graph.add_edge(START, "write").add_conditional_edges("write", decide, [END])
    run(graph.compile(), gateway)
    assert [seen.headers["x-lightning-agent"] for seen in gateway.seen] == ["write", "grader"]


async def test_a_nodes_own_pool_is_named_after_it(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    with ThreadPoolExecutor(8) as shared:

        def node(state: State) -> None:
            jobs = [shared.submit(llm.invoke, prompt(state, "node")) for _ in range(4)]
            with ThreadPoolExecutor(2) as own:
                list(own.map(lambda _: llm.invoke(prompt(state, "node")), range(4)))
            for job in jobs:
                job.result()

        await play(graph_of(node=node, after=apps.asking(llm, "after", False)), gateway, "invoke")
    expect(gateway, {"node": 8, "after": 1})


async def test_every_retry_by_langchain_is_named(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    stubborn = ChatOpenAI(
        model="any",
        api_key=llm.openai_api_key,
        http_client=llm.http_client,
        http_async_client=llm.http_async_client,
        max_retries=0,
    ).with_retry(stop_after_attempt=3, wait_exponential_jitter=False)

    def node(state: State) -> None:
        marks = mark(rollout=state["rollout"], agent="node", key=state["rollout"], fail=2)
        stubborn.invoke(marks)

    await play(graph_of(node=node), gateway, "invoke", rollouts=4)
    assert gateway.mistakes() == []
    assert [seen.status for seen in gateway.seen].count(500) == 8
    assert len({request.call for request in gateway.tagged()}) == 12  # new calls, each its own


def test_a_chain_in_a_node_is_the_nodes(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    template = ChatPromptTemplate.from_messages([("user", "{text}")])

    def node(state: State) -> None:
        (template | llm).with_config(run_name="chain").invoke({"text": mark(rollout="r1", agent="node")})

    run(graph_of(node=node), gateway)
    expect(gateway, {"node": 1}, rollouts=1)


def test_a_block_in_a_node_wins_and_one_around_the_graph_does_not(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    inner = graph_of(leaf=lambda state: llm.invoke(prompt(state, "leaf")) and None)

    def node(state: State) -> None:
        llm.invoke(prompt(state, "node"))
        with agent("block"):
            llm.invoke(prompt(state, "block"))
            inner.invoke(state)
            llm.invoke(prompt(state, "block"))
        llm.invoke(prompt(state, "node"))

    with agent("around"):
        run(graph_of(node=node), gateway)
    expect(gateway, {"node": 2, "block": 2, "leaf": 1}, rollouts=1)


async def test_calls_made_while_a_stream_is_open_are_not_named_after_the_stream(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    with OpenAI(api_key="none") as client:
        inner = graph_of(leaf=lambda state: bare(client, "leaf", state["rollout"]))

        def node(state: State) -> None:
            for index, _ in enumerate(llm.stream(prompt(state, "node"))):
                if index == 0:
                    inner.invoke(state)
                    with agent("block"):
                        llm.invoke(prompt(state, "block"))

        await play(graph_of(node=node), gateway, "invoke")
    expect(gateway, {"node": 1, "leaf": 1, "block": 1})


async def test_after_a_model_run_its_name_is_never_answered_again(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    config: RunnableConfig = {
        "callbacks": [LightningCallback()],
        "metadata": {"langgraph_node": "node", "langgraph_checkpoint_ns": "node:1"},
    }
    with rollout_scope(scope_at(gateway)), OpenAI(api_key="none") as client:
        await llm.ainvoke(mark(rollout="r1", agent="node"), config)
        async for _ in llm.astream(mark(rollout="r1", agent="node"), config):
            pass
        llm.invoke(mark(rollout="r1", agent="node"), config)
        bare(client, UNNAMED)
    expect(gateway, {"node": 3, UNNAMED: 1}, rollouts=1)


def test_a_config_handed_to_a_place_without_context_still_names_the_call(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    def node(state: State, config: RunnableConfig) -> None:
        def elsewhere() -> None:
            with rollout_scope(scope_at(gateway)):
                llm.invoke(prompt(state, "node"), config)

        Context().run(elsewhere)

    run(graph_of(node=node), gateway)
    expect(gateway, {"node": 1}, rollouts=1)


def test_a_config_handed_to_an_ended_nodes_context_names_the_living_node(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    contexts: list[Context] = []
    first = lambda state: contexts.append(copy_context())  # noqa: E731

    def second(state: State, config: RunnableConfig) -> None:
        contexts[0].run(llm.invoke, prompt(state, "second"), config)

    run(graph_of(first=first, second=second), gateway)
    expect(gateway, {"second": 1}, rollouts=1)


async def test_a_users_own_callbacks_do_not_hide_ours(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    graph = apps.chain(llm, True, "write", "check").with_config(callbacks=[LightningCallback()])
    with rollout_scope(scope_at(gateway)), agent("around"):
        await graph.ainvoke(given("r1"), {"callbacks": [BaseCallbackHandler()]})
    expect(gateway, {"write": 1, "check": 1}, rollouts=1)


@pytest.mark.parametrize("build", [apps.parallel, apps.fan_out, apps.nested])
async def test_without_the_callback_the_names_are_right_too(
    gateway: GatewayDouble, llm: ChatOpenAI, build: Callable[..., Any]
) -> None:
    with rollout_scope(scope_at(gateway)):
        await build(llm, True).ainvoke(given("r1"))
    assert gateway.mistakes() == []
    assert len(gateway.seen) >= 5


async def test_an_error_in_a_node_leaves_nothing_open(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    def node(state: State) -> None:
        llm.invoke(prompt(state, "node"))
        raise KeyError("mine")

    callback = LightningCallback()
    graph = graph_of(node=node).with_config(callbacks=[callback])
    for call in (graph.invoke, lambda value: asyncio.run(graph.ainvoke(value))):
        with rollout_scope(scope_at(gateway)), pytest.raises(KeyError, match="mine"):
            await asyncio.to_thread(call, given("r1"))
    expect(gateway, {"node": 2}, rollouts=1)
    assert callback.lightning_runs.open_count() == 0


async def test_all_entrances_and_shapes_at_once_never_mix(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    shapes = (apps.parallel, apps.fan_out, apps.nested, apps.boss_with_tools)
    await asyncio.gather(
        *(
            play(build(llm, entrance in ("ainvoke", "astream")), gateway, entrance)
            for entrance in ENTRANCES
            for build in shapes
        )
    )
    assert gateway.mistakes() == []
    assert len(gateway.seen) == len(ENTRANCES) * ROLLOUTS * (5 + 7 + 9 + 8)
    assert current_scope() is None
