"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys

from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class SendTo(Tool):
    name = "final_answer"  # the tool that ends a run
    description = "Send the message to a team."
    inputs = {
        "answer": {
            "type": "string",
            "enum": ["billing", "shipping", "account"],
            "description": "The team.",
        }
    }
    output_type = "string"

    def forward(self, answer: str) -> str:
        return answer


def build_agent() -> ToolCallingAgent:
    model = OpenAIModel(
        os.environ.get("MODEL", "gpt-5-mini"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_completion_tokens=LONGEST,
    )
    agent = ToolCallingAgent([SendTo()], model, name="triage", max_steps=1, verbosity_level=LogLevel.OFF)
    agent.prompt_templates["system_prompt"] = PROMPT  # a short prompt, for a small model
    return agent


async def answer(message: str) -> str:
    # an agent keeps its memory: one for each message, in a thread, as its run blocks
    return str(await asyncio.to_thread(build_agent().run, message))


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
