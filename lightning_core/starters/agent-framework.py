"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


client = OpenAIChatCompletionClient(
    os.environ.get("MODEL", "gpt-5-mini"), api_key=os.environ.get("OPENAI_API_KEY", "none")
)
options = {"response_format": Triage, "max_tokens": LONGEST}
agent = Agent(client, PROMPT, name="triage", default_options=options)


async def answer(message: str) -> str:
    return (await agent.run(message)).value.team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
