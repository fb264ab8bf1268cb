"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


def send_to(team: Literal["billing", "shipping", "account"]) -> str:
    """Send the message to a team."""
    return team


llm = OpenAILike(
    os.environ.get("MODEL", "gpt-5-mini"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    api_base=os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    max_tokens=LONGEST,
    is_chat_model=True,
    is_function_calling_model=True,
)
agent = FunctionAgent(
    name="triage",
    system_prompt=PROMPT,
    llm=llm,
    tools=[FunctionTool.from_defaults(send_to, return_direct=True)],
    initial_tool_choice="send_to",
)


async def answer(message: str) -> str:
    return str(await agent.run(user_msg=message))


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
