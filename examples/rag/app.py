"""An agent that answers questions from a library of passages, with a search tool.

    library = Library("library.sqlite")
    print(await ask("Who founded the company that built the bridge Silver Heron?", library))

The library is a full-text index (`examples.rag.library`). The model is the one named by RAG_MODEL.
"""

import os

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from examples.rag.library import Library

MAX_TURNS = 5
"""Searches and the answer together; who has not answered by then gives no answer."""

CONFIG = RunConfig(tracing_disabled=True)
"""Nothing is sent to the SDK's maker."""


@function_tool
async def search(context: RunContextWrapper[Library], query: str) -> str:
    """Search the library."""
    return "\n".join(context.context.search(query)) or "Nothing found."


def build_agent() -> Agent[Library]:
    """The agent, on the Responses API of OPENAI_BASE_URL or of the SDK's default endpoint."""
    client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"))
    return Agent[Library](
        name="researcher",
        instructions="Search, then reply with Answer: and the name.",
        tools=[search],
        model=OpenAIResponsesModel(os.environ.get("RAG_MODEL", "gpt-5-mini"), client),
        model_settings=ModelSettings(max_tokens=48),
    )


agent = build_agent()


async def ask(question: str, library: Library) -> str:
    """The agent's reply; empty when it had none after MAX_TURNS."""
    try:
        result = await Runner.run(agent, question, context=library, max_turns=MAX_TURNS, run_config=CONFIG)
    except MaxTurnsExceeded:
        return ""
    return str(result.final_output)
