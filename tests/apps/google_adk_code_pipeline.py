"""Write code, review it, refactor it: three agents, each told what the one before it has left in the state.

After google/adk-python, contributing/samples/workflow_agent_seq/agent.py: a SequentialAgent, `output_key`,
and instructions with `{generated_code}`.
"""

from __future__ import annotations

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from lightning_google_adk import attach

from tests.apps.google_adk_dice import ask
from tests.apps.stage import App, Role


def build_agent() -> SequentialAgent:
    model = LiteLlm("openai/gpt-4o")
    writer = LlmAgent(
        name="CodeWriterAgent",
        model=model,
        instruction="You are a Python Code Generator.",
        description="Writes initial Python code based on a specification.",
        output_key="generated_code",
    )
    reviewer = LlmAgent(
        name="CodeReviewerAgent",
        model=model,
        instruction="You are an expert Python Code Reviewer. {generated_code}",
        output_key="review_comments",
    )
    refactorer = LlmAgent(
        name="CodeRefactorerAgent",
        model=model,
        instruction="You are a Python Code Refactoring AI. {generated_code} {review_comments}",
        output_key="refactored_code",
    )
    return SequentialAgent(name="CodePipelineAgent", sub_agents=[writer, reviewer, refactorer])


async def run() -> str:
    agent = attach(build_agent())  # the one line
    async with InMemoryRunner(agent, app_name="code") as runner:
        session = await runner.session_service.create_session(app_name="code", user_id="user")
        return await ask(runner, "Write a function that adds.", session.id)


APP = App(
    "Code pipeline",
    (
        Role("CodeWriterAgent", "You are a Python Code Generator", ["add = lambda a, b: a + b"]),
        Role("CodeReviewerAgent", "You are an expert Python Code Reviewer", ["Use def."]),
        Role("CodeRefactorerAgent", "You are a Python Code Refactoring", ["def add(a, b): return a + b"]),
    ),
    run,
    "def add",
    {"CodeWriterAgent": 1, "CodeReviewerAgent": 1, "CodeRefactorerAgent": 1},
)
