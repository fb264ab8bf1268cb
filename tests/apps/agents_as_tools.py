"""An orchestrator calls translators as tools, several at once; a synthesizer reads what it did.

After openai/openai-agents-python, examples/agent_patterns/agents_as_tools.py: spanish_agent, french_agent
and italian_agent by `as_tool`, orchestrator_agent, synthesizer_agent on the orchestrator's whole history.
"""

from __future__ import annotations

from agents import Agent, Runner, trace
from lightning_openai_agents import attach

from tests.apps.stage import App, Role

LANGUAGES = ("Spanish", "French", "Italian")


def build_agents() -> tuple[Agent[None], Agent[None]]:
    translators = {
        language: Agent[None](
            name=f"{language.lower()}_agent", instructions=f"You translate the user's message to {language}"
        )
        for language in LANGUAGES
    }
    orchestrator = Agent[None](
        name="orchestrator_agent",
        instructions="You are a translation agent. You use the tools given to you to translate.",
        tools=[
            agent.as_tool(f"translate_to_{language.lower()}", f"Translate the user's message to {language}")
            for language, agent in translators.items()
        ],
    )
    synthesizer = Agent[None](
        name="synthesizer_agent",
        instructions="You inspect translations, correct them if needed, and join them.",
    )
    return orchestrator, synthesizer


async def run() -> str:
    orchestrator, synthesizer = build_agents()
    attach(orchestrator)  # the one line
    with trace("Orchestrator evaluator"):
        translated = await Runner.run(orchestrator, "Hi, in Spanish, French and Italian")
        result = await Runner.run(synthesizer, translated.to_input_list())
    return str(result.final_output)


APP = App(
    "Agents as tools",
    (
        Role(
            "orchestrator_agent",
            "You are a translation agent.",
            [
                [(f"translate_to_{language.lower()}", {"input": "Hi"}) for language in LANGUAGES],
                "Hola, Salut, Ciao",
            ],
        ),
        Role("spanish_agent", "message to Spanish", ["Hola"]),
        Role("french_agent", "message to French", ["Salut"]),
        Role("italian_agent", "message to Italian", ["Ciao"]),
        Role("synthesizer_agent", "You inspect translations", ["Hola! Salut! Ciao!"]),
    ),
    run,
    "Hola! Salut! Ciao!",
    {
        "orchestrator_agent": 2,
        "spanish_agent": 1,
        "french_agent": 1,
        "italian_agent": 1,
        "synthesizer_agent": 1,
    },
)
