"""Train two agents of the OpenAI Agents SDK: a writer, and a checker that reads what it wrote."""

from __future__ import annotations

from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner
from lightning_openai_agents import attach
from openai import AsyncOpenAI

import lightning_core as lightning

model = OpenAIResponsesModel("gpt-5-mini", AsyncOpenAI(api_key="none"))
writer, checker = (
    attach(
        Agent(
            name=name,
            instructions=f"You are the {name}.",
            model=model,
            model_settings=ModelSettings(max_tokens=32),
        )
    )
    for name in ("writer", "checker")
)


async def solve(task: lightning.Task) -> float:
    """Let each speak once; the reward follows from their replies."""
    text, said = str(task.input["question"]), ""
    for agent in (writer, checker):
        result = await Runner.run(agent, text, run_config=RunConfig(tracing_disabled=True))
        text = str(result.final_output)
        said += text
    return sum(map(ord, said)) % 11 / 10


if __name__ == "__main__":
    questions = [
        {"question": f"boats(id, name, speed)\nQuestion: List the boats with speed above {n}."}
        for n in range(8)
    ]
    lightning.Trainer(model="tiny", agents=["writer", "checker"], temperature=1.5).fit(solve, train=questions)
