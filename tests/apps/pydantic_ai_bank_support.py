"""A bank's support: dependencies, instructions by a function, a tool, three modes of output, streamed.

After pydantic/pydantic-ai, examples/pydantic_ai_examples/bank_support.py (support_agent, `output_type`,
customer_balance) and docs/output.md, which shows the tool, native and prompted modes of output and
`run_stream`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning_pydantic_ai import attach
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel

from tests.apps.stage import App, Role


@dataclass
class SupportDependencies:
    customer_name: str


class SupportOutput(BaseModel):
    support_advice: str
    block_card: bool
    risk: int = Field(ge=0, le=10)


def build_agent(name: str, output: Any) -> Agent[SupportDependencies, Any]:
    agent = Agent[SupportDependencies, Any](
        OpenAIChatModel("gpt-4o"),
        name=name,
        deps_type=SupportDependencies,
        output_type=output,
        instructions=f"You are a support agent in our bank, by the {name}.",
    )

    @agent.instructions
    async def add_customer_name(ctx: RunContext[SupportDependencies]) -> str:
        return f"The customer's name is {ctx.deps.customer_name!r}"

    @agent.tool
    async def customer_balance(ctx: RunContext[SupportDependencies], include_pending: bool) -> str:
        """The customer's current account balance."""
        return "$123.45"

    return agent


async def run() -> str:
    outputs = {
        "tool_support": ToolOutput(SupportOutput, name="advise"),
        "native_support": NativeOutput(SupportOutput),
        "prompted_support": PromptedOutput(SupportOutput),
    }
    agents = [build_agent(name, output) for name, output in outputs.items()]
    attach(agents[0])  # the one line
    said = []
    for agent in agents:
        async with agent.run_stream("What is my balance?", deps=SupportDependencies("John")) as answer:
            seen = [output async for output in answer.stream_output(debounce_by=None)]
        said.append(seen[-1].support_advice)
    return " ".join(said)


ASK = [("customer_balance", {"include_pending": True})]
ADVICE: dict[str, Any] = {"support_advice": "Yours.", "block_card": False, "risk": 1}
TEXT = '{"support_advice": "Yours.", "block_card": false, "risk": 1}'
APP = App(
    "Bank support",
    (
        Role("tool_support", "by the tool_support", [ASK, [("advise", ADVICE)]]),
        Role("native_support", "by the native_support", [ASK, TEXT]),
        Role("prompted_support", "by the prompted_support", [ASK, TEXT]),
    ),
    run,
    "Yours. Yours. Yours.",
    {"tool_support": 2, "native_support": 2, "prompted_support": 2},
)
