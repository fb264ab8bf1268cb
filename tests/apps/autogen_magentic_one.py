"""An orchestrator that keeps a ledger of facts and progress, and says who acts next.

After microsoft/autogen, python/docs/src/user-guide/agentchat-user-guide/magentic-one.md:
`MagenticOneGroupChat` with an Assistant and a file surfer; the ledger is asked for as a schema, as the
client's `model_info` says that the model takes one.
"""

from __future__ import annotations

import json

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import MagenticOneGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach

from tests.apps.stage import App, Role


def read_file(path: str) -> str:
    """Read a file."""
    return "a proof"


def build_team(client: OpenAIChatCompletionClient) -> MagenticOneGroupChat:
    assistant = AssistantAgent("Assistant", client, system_message="You solve what you are asked.")
    surfer = AssistantAgent("FileSurfer", client, tools=[read_file], system_message="You read local files.")
    return MagenticOneGroupChat([assistant, surfer], model_client=client, max_turns=5)


async def run() -> str:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    team = attach(build_team(client))  # the one line
    result = await team.run(task="Provide a different proof for Fermat's Last Theorem")
    await client.close()
    return str(result.messages[-1].content)  # type: ignore[union-attr]


def ledger(done: bool, speaker: str) -> str:
    answers = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": speaker,
        "instruction_or_question": "Go on.",
    }
    return json.dumps({name: {"answer": answer, "reason": "so"} for name, answer in answers.items()})


APP = App(
    "MagenticOne",
    (
        Role("Assistant", "You solve what you are asked.", ["It is trivial."]),
        Role("FileSurfer", "You read local files.", [[("read_file", {"path": "proof.txt"})]]),
        Role(
            "MagenticOneOrchestrator",
            "is_request_satisfied",
            [ledger(False, "FileSurfer"), ledger(False, "Assistant"), ledger(True, "Assistant")],
        ),
        Role("MagenticOneOrchestrator", "", ["Here is the final answer."]),
    ),
    run,
    "final answer",
    {"MagenticOneOrchestrator": 6, "FileSurfer": 1, "Assistant": 1},
)
