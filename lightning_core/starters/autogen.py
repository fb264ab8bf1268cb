"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


client = OpenAIChatCompletionClient(
    model=os.environ.get("MODEL", "gpt-5-mini"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    max_completion_tokens=LONGEST,
    model_info=ModelInfo(
        vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown"
    ),
)


async def answer(message: str) -> str:
    # an agent remembers what it was told: one for each message
    agent = AssistantAgent("triage", client, system_message=PROMPT, output_content_type=Triage)
    result = await agent.run(task=message)
    return result.messages[-1].content.team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
