"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from crewai import LLM, Agent, Crew, Task
from pydantic import BaseModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


llm = LLM(
    model=os.environ.get("MODEL", "gpt-5-mini"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    max_completion_tokens=LONGEST,
    response_format=Triage,
)


async def answer(message: str) -> str:
    agent = Agent(role="triage", goal=PROMPT, backstory="You know the three teams.", llm=llm)
    task = Task(description="{message}", expected_output="The team.", agent=agent)
    output = await Crew(agents=[agent], tasks=[task]).akickoff(inputs={"message": message})
    return Triage.model_validate_json(output.raw).team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
