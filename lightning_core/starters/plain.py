"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

import openai
from pydantic import BaseModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


async def answer(message: str) -> str:
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": message}]
    async with openai.AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        reply = await client.chat.completions.parse(
            model=os.environ.get("MODEL", "gpt-5-mini"),
            messages=messages,
            response_format=Triage,
            max_completion_tokens=LONGEST,
        )
    return reply.choices[0].message.parsed.team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
