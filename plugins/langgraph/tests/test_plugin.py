"""The distribution: found by its entry point, light to load, attached in one call."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_openai import ChatOpenAI

import lightning_core
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import rollout_scope
from plugins.langgraph.tests import apps
from plugins.langgraph.tests.playing import expect, given, scope_at


async def test_attach_is_the_same_as_the_callback(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    graph = lightning_core.attach(apps.chain(llm, True, "write", "check"))
    with rollout_scope(scope_at(gateway)), lightning_core.agent("around"):
        await graph.ainvoke(given("r1"))
    expect(gateway, {"write": 1, "check": 1}, rollouts=1)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import lightning_langgraph

    with pytest.raises(AttributeError, match="LightningCallbak"):
        lightning_langgraph.LightningCallbak  # noqa: B018


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    assert run_example(readme, gateway, ["write"], question="Is it?", answer="it is done") == 1.0
    assert gateway.agents() == {"write": 1, "check": 1}
