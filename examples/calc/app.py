"""A solver of word problems: an AutoGen agent that has a calculator.

    solver = build_agent()
    result = await solver.run(task="A boat carries 14 crates with 23 books each. How many books is that?")
    print(result.messages[-1].to_text())

The model is the one named by CALC_MODEL, or the client given to `build_agent`. An agent remembers what it was
told: build one for each problem; they can share a client.
"""

import os

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient

from examples.calc.calculator import evaluate, show

SYSTEM = "Solve the problem. Use the calculator. Reply with the number."
MAX_CALCULATIONS = 3


def build_client() -> OpenAIChatCompletionClient:
    """The model named by CALC_MODEL, at the endpoint of OPENAI_BASE_URL when that is set."""
    return OpenAIChatCompletionClient(
        model=os.environ.get("CALC_MODEL", "gpt-4o-mini-2024-07-18"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_tokens=64,
    )


def build_agent(client: ChatCompletionClient | None = None) -> AssistantAgent:
    """An agent that solves one problem: the last message of its run ends with the answer."""
    return AssistantAgent(
        "solver",
        client or build_client(),
        description="Solves word problems with a calculator.",
        system_message=SYSTEM,
        tools=[calculator],
        max_tool_iterations=MAX_CALCULATIONS,
    )


def calculator(expression: str) -> str:
    """Evaluate arithmetic, such as (12+3)*4."""
    return show(evaluate(expression))
