"""A root agent that transfers to agents for rolling dice and for prime numbers.

After google/adk-python, contributing/samples/hello_world_ma/agent.py: sub-agents with a description and a
tool each, a global instruction, transfers by the model.
"""

from __future__ import annotations

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from lightning_google_adk import attach

from tests.apps.stage import App, Role


def roll_die(sides: int) -> int:
    """Roll a die and return the rolled result."""
    return sides - 1


def check_prime(nums: list[int]) -> str:
    """Check if a given list of numbers are prime."""
    return f"{', '.join(str(num) for num in nums)} are prime numbers."


def build_agent() -> LlmAgent:
    model = LiteLlm("openai/gpt-4o")
    roll_agent = LlmAgent(
        name="roll_agent",
        description="Handles rolling dice of different sizes.",
        model=model,
        instruction="You are responsible for rolling dice.",
        tools=[roll_die],
    )
    prime_agent = LlmAgent(
        name="prime_agent",
        description="Handles checking if numbers are prime.",
        model=model,
        instruction="You are responsible for checking whether numbers are prime.",
        tools=[check_prime],
    )
    return LlmAgent(
        name="root_agent",
        model=model,
        instruction="You are a helpful assistant that can roll dice and check primes.",
        sub_agents=[roll_agent, prime_agent],
    )


async def ask(runner: InMemoryRunner, question: str, session: str) -> str:
    """Returns the last answer."""
    said = ""
    message = types.Content(role="user", parts=[types.Part.from_text(text=question)])
    async for event in runner.run_async(user_id="user", session_id=session, new_message=message):
        if event.content and event.content.parts:
            said = "".join(part.text or "" for part in event.content.parts) or said
    return said


async def run() -> str:
    agent = attach(build_agent())  # the one line
    async with InMemoryRunner(agent, app_name="dice") as runner:
        session = await runner.session_service.create_session(app_name="dice", user_id="user")
        await ask(runner, "Roll a die with 8 sides.", session.id)
        return await ask(runner, "Is it prime?", session.id)


def to(name: str) -> list[tuple[str, dict[str, object]]]:
    return [("transfer_to_agent", {"agent_name": name})]


APP = App(
    "Dice and primes",
    (
        Role("root_agent", "You are a helpful assistant that can roll", [to("roll_agent")]),
        Role(
            "roll_agent",
            "You are responsible for rolling",
            [[("roll_die", {"sides": 8})], "I rolled a 7.", to("prime_agent")],
        ),
        Role(
            "prime_agent",
            "You are responsible for checking",
            [[("check_prime", {"nums": [7]})], "7 is a prime number."],
        ),
    ),
    run,
    "7 is a prime number.",
    {"root_agent": 1, "roll_agent": 3, "prime_agent": 2},
)
