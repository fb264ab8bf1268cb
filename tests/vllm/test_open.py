"""One version served alone, with tool calls; and LoRA loaded into it in place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("vllm")

from examples.calc.tasks import generate_split
from lightning_core.backends.vllm.engine import VllmEngine, open_vllm
from lightning_core.backends.vllm.server import ServerOptions
from lightning_core.gateway.engine_cache import EngineCache
from tests.backends.serving import ask, plain_logprobs, serving

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
    engine = asyncio.run(open_vllm(CALC, 3, options=ServerOptions(dtype="float32", lora_rank=8), name="calc"))
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


async def test_lora_takes_the_place_of_the_one_before(opened: VllmEngine, tmp_path: Path) -> None:
    for step in (1, 2):
        network = with_lora(tmp_path / str(step), step)
        version = await opened.refresh(tmp_path / str(step))
        reply = await ask(opened, "what is 1 + 1", max_tokens=8)
        assert reply.policy_version == version == 3 + step
        assert reply.logprobs == pytest.approx(plain_logprobs(network, reply.prompt_ids, reply.ids), abs=1e-3)


def with_lora(folder: Path, seed: int) -> Any:
    """The network with a random LoRA, which is written to the folder."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_pretrained(CALC, dtype=torch.float32)
    made = peft.get_peft_model(network, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter += 0.05 * torch.randn_like(parameter)
    made.save_pretrained(folder)
    return made
