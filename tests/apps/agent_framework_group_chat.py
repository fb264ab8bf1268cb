"""A researcher and a writer, and a manager who says who speaks next and when it is enough.

After microsoft/agent-framework, python/samples/03-workflows/orchestrations/group_chat_agent_manager.py:
GroupChatBuilder with an `orchestrator_agent` that answers by a schema, descriptions, a termination
condition, and a workflow that is read as a stream.
"""

from __future__ import annotations

import json

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from agent_framework_orchestrations import GroupChatBuilder
from lightning_agent_framework import attach

from tests.apps.stage import App, Role


async def run() -> str:
    client = OpenAIChatClient("gpt-4o")
    orchestrator = Agent(
        client,
        "You coordinate a team conversation.",
        name="Orchestrator",
        description="Coordinates multi-agent collaboration by selecting speakers",
    )
    researcher = Agent(
        client, "Gather concise facts.", name="Researcher", description="Collects background information"
    )
    writer = Agent(
        client, "Compose clear answers.", name="Writer", description="Synthesizes polished answers"
    )
    builder = GroupChatBuilder(
        participants=[researcher, writer],
        termination_condition=lambda messages: sum(each.role == "assistant" for each in messages) >= 4,
        intermediate_output_from=[researcher, writer],
        orchestrator_agent=orchestrator,
    )
    workflow = attach(builder.build())  # the one line
    said = []
    async for event in workflow.run("Why async/await?", stream=True):
        if event.type in ("intermediate", "output"):
            said.append(str(getattr(event.data, "text", event.data)))
    return " ".join(said)


def choice(name: str | None) -> str:
    enough = {"terminate": name is None, "reason": "it is due", "next_speaker": name}
    return json.dumps({**enough, "final_message": "Loops wait together." if name is None else None})


APP = App(
    "Group chat",
    (
        Role(
            "Orchestrator",
            "You coordinate a team conversation.",
            [choice("Researcher"), choice("Writer"), choice(None)],
        ),
        Role("Researcher", "Gather concise facts.", ["Loops wait for many at once."]),
        Role("Writer", "Compose clear answers.", ["One loop waits for many."]),
    ),
    run,
    "Loops wait together.",
    {"Orchestrator": 3, "Researcher": 1, "Writer": 1},
)
