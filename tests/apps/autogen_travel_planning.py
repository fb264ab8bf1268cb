"""Four agents plan a trip in turn until the last one says so; then the model chooses who is next.

After microsoft/autogen, python/docs/.../agentchat-user-guide/examples/travel-planning.ipynb (planner_agent,
local_agent, language_agent, travel_summary_agent; `TextMentionTermination`) and selector-group-chat.ipynb,
whose team asks the model for the next speaker.
"""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach

from tests.apps.stage import App, Role

AGENTS = {
    "planner_agent": "You are a helpful assistant that can suggest a travel plan.",
    "local_agent": "You are a helpful assistant that can suggest authentic local activities.",
    "language_agent": "You are a helpful assistant that can review travel plans for language tips.",
    "travel_summary_agent": "You are a helpful assistant that can integrate all of the suggestions.",
}


def build_agents(client: OpenAIChatCompletionClient, stream: bool) -> list[AssistantAgent]:
    return [
        AssistantAgent(name, client, description=text, system_message=text, model_client_stream=stream)
        for name, text in AGENTS.items()
    ]


async def run() -> str:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    ends = TextMentionTermination("TERMINATE") | MaxMessageTermination(9)
    turns = RoundRobinGroupChat([*build_agents(client, True)], termination_condition=ends)
    attach(turns)  # the one line
    first = await turns.run(task="Plan a 3 day trip to Nepal.")
    ends = TextMentionTermination("TERMINATE") | MaxMessageTermination(9)
    chosen = SelectorGroupChat(
        [*build_agents(client, False)],
        client,
        termination_condition=ends,
        selector_prompt="Select an agent to perform the task: {roles} {history} one of {participants}.",
    )
    second = await chosen.run(task="Plan it again.")
    await client.close()
    return f"{first.messages[-1].content} {second.messages[-1].content}"  # type: ignore[union-attr]


APP = App(
    "Travel planning",
    (
        Role(
            "SelectorGroupChatManager",
            "Select an agent to perform the task",
            ["planner_agent", "travel_summary_agent"],
        ),
        Role("planner_agent", AGENTS["planner_agent"], ["Kathmandu."]),
        Role("local_agent", AGENTS["local_agent"], ["Boudhanath."]),
        Role("language_agent", AGENTS["language_agent"], ["Namaste."]),
        Role("travel_summary_agent", AGENTS["travel_summary_agent"], ["All set. TERMINATE"]),
    ),
    run,
    "All set. TERMINATE All set. TERMINATE",
    {
        "SelectorGroupChatManager": 2,
        "planner_agent": 2,
        "local_agent": 1,
        "language_agent": 1,
        "travel_summary_agent": 2,
    },
)
