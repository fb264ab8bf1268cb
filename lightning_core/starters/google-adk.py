"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


model = LiteLlm(
    f"openai/{os.environ.get('MODEL', 'gpt-5-mini')}", api_key=os.environ.get("OPENAI_API_KEY", "none")
)
bounds = types.GenerateContentConfig(max_output_tokens=LONGEST)
agent = LlmAgent(
    name="triage", model=model, instruction=PROMPT, output_schema=Triage, generate_content_config=bounds
)


async def answer(message: str) -> str:
    runner = InMemoryRunner(agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    asked = types.Content(role="user", parts=[types.Part(text=message)])
    said = ""
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=asked):
        if event.content and event.content.parts:
            said = event.content.parts[0].text or said
    return Triage.model_validate_json(said).team


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
