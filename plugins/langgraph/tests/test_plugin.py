"""The distribution: found by its entry point, light to load, attached in one call."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

import lightning_core
from lightning_core.plugins import load_plugins
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import rollout_scope
from plugins.langgraph.tests import apps
from plugins.langgraph.tests.playing import expect, given, scope_at


def test_it_is_found_by_its_entry_point_and_runs_in_lock_step_with_the_core() -> None:
    plugins = load_plugins(["langgraph"])
    [info] = [info for info in plugins.list() if info.name == "langgraph"]
    assert info.version == lightning_core.__version__
    assert info.hooks == ("lightning_attach", "lightning_who")


def test_loading_and_asking_it_imports_no_framework() -> None:
    program = (
        "import sys\n"
        "from lightning_core.plugins import load_plugins\n"
        "plugins = load_plugins(['langgraph'])\n"
        "assert plugins.who() is None\n"
        "try: plugins.attach(object())\n"
        "except Exception as error: assert 'langgraph' in str(error), error\n"
        "else: raise AssertionError\n"
        "heavy = [name for name in sys.modules if name.partition('.')[0] in"
        " ('langchain_core', 'langgraph', 'langsmith', 'openai')]\n"
        "assert heavy == [], heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_attach_is_the_same_as_the_callback(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    graph = lightning_core.attach(apps.chain(llm, True, "write", "check"))
    with rollout_scope(scope_at(gateway)), lightning_core.agent("around"):
        await graph.ainvoke(given("r1"))
    expect(gateway, {"write": 1, "check": 1}, rollouts=1)


def test_attach_leaves_what_is_not_langchains() -> None:
    with pytest.raises(
        lightning_core.LightningError, match=r"no plugin takes a builtins\.object.*'langgraph'"
    ):
        load_plugins(["langgraph"]).attach(object())


def test_an_unknown_name_is_an_attribute_error() -> None:
    import lightning_langgraph

    with pytest.raises(AttributeError, match="LightningCallbak"):
        lightning_langgraph.LightningCallbak  # noqa: B018


async def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    example: dict[str, Any] = {}
    exec(block.partition("trainer.fit(")[0], example)  # what follows trains for minutes
    task = lightning_core.Task(input={"question": "Is it?", "answer": "it is done"})
    with rollout_scope(scope_at(gateway)):
        assert await example["solve"](task) == 1.0
    assert tuple(example["trainer"].agents) == ("write",)
    assert gateway.agents() == {"write": 1, "check": 1}
