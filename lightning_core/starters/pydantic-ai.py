"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


os.environ.setdefault("OPENAI_API_KEY", "none")
agent = Agent(
    OpenAIChatModel(os.environ.get("MODEL", "gpt-5-mini")),
    name="triage",
    instructions=PROMPT,
    model_settings={"max_tokens": LONGEST},
    output_type=NativeOutput(Triage),
)


async def answer(message: str) -> str:
    return (await agent.run(message)).output.team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
