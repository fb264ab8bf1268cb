"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from agents import Agent, ModelSettings, Runner, set_tracing_disabled
from pydantic import BaseModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


set_tracing_disabled(True)  # tracing sends what is said to OpenAI
os.environ.setdefault("OPENAI_API_KEY", "none")
agent = Agent(
    name="triage",
    instructions=PROMPT,
    model=os.environ.get("MODEL", "gpt-5-mini"),
    model_settings=ModelSettings(max_tokens=LONGEST),
    output_type=Triage,
)


async def answer(message: str) -> str:
    return (await Runner.run(agent, message)).final_output.team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
