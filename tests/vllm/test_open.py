"""One version served alone, with tool calls; its server is started again when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from examples.calc.tasks import generate_split
from lightning_core.backends.vllm.server import ServerOptions, VllmEngine
from lightning_core.gateway.engine_cache import EngineCache
from lightning_core.runner.supervisor import descendants
from tests.backends.serving import ask, serving
from tests.vllm.weights import until

# as the example's app and its framework say them; the framework is not in this environment
SYSTEM = "Solve the problem. Use the calculator. Reply with the number."
EXPRESSION = {"description": "expression", "title": "Expression", "type": "string"}
CALCULATOR = {
    "name": "calculator",
    "description": "Evaluate arithmetic, such as (12+3)*4.",
    "parameters": {
        "type": "object",
        "properties": {"expression": EXPRESSION},
        "required": ["expression"],
        "additionalProperties": False,
    },
    "strict": False,
}
TOOLS = [{"type": "function", "function": CALCULATOR}]
CALC = Path(__file__).parents[2] / "examples/calc/policy"


@pytest.fixture(scope="module")
def opened() -> Iterator[VllmEngine]:
    engine = VllmEngine(CALC, 3, options=ServerOptions(dtype="float32"), name="calc")
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def test_a_version_is_served_alone_and_calls_its_tools(opened: VllmEngine) -> None:
    async def found(version: int) -> VllmEngine:
        return opened

    called = 0
    async with EngineCache(found, 1).engine(3) as engine, serving(CALC) as local:
        assert engine.upstream.model_name == "calc"
        for problem in generate_split("test")[:4]:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.text}]
            asked: dict[str, Any] = {"tools": TOOLS, "temperature": 0.0, "max_tokens": 64}
            ours, theirs = await ask(local, messages, **asked), await ask(engine, messages, **asked)
            assert theirs.policy_version == 3
            assert (theirs.ids, theirs.text, theirs.finish_reason) == (
                ours.ids,
                ours.text,
                ours.finish_reason,
            )
            assert said(theirs.tool_calls) == said(ours.tool_calls)
            called += len(theirs.tool_calls)
    assert called


def said(calls: list[dict[str, Any]]) -> list[Any]:
    """Without the ids, which are made."""
    return [call["function"] for call in calls]


async def test_a_server_that_dies_while_idle_is_started_again(opened: VllmEngine) -> None:
    before = await ask(opened, "what is 1 + 1", temperature=0.0, max_tokens=8)
    assert opened.server.pid
    for pid in descendants(opened.server.pid):
        with suppress(ProcessLookupError):  # it has ended with its parent
            os.kill(pid, signal.SIGKILL)
    await until(lambda: bool(opened.replicas.dead))
    again = await ask(opened, "what is 1 + 1", temperature=0.0, max_tokens=8)  # waits until it answers
    assert (again.ids, again.policy_version) == (before.ids, 3)
