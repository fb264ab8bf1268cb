"""A joke and its critique: a workflow of the app's own, whose two steps call the model themselves.

After the docs of run-llama/llama_index, "Basic workflow" (understanding/workflows): an event with a field,
a step that makes a joke and one that criticises it, `acomplete` of an LLM on the class.
"""

from __future__ import annotations

from lightning_llama_index import attach
from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai import OpenAI

from tests.apps.stage import App, Role


class JokeEvent(Event):
    joke: str


class JokeFlow(Workflow):
    @step
    async def generate_joke(self, ev: StartEvent) -> JokeEvent:
        response = await OpenAI(model="gpt-4o").acomplete(f"Write your best joke about {ev.topic}.")
        return JokeEvent(joke=str(response))

    @step
    async def critique_joke(self, ev: JokeEvent) -> StopEvent:
        prompt = f"Give a thorough analysis and critique of the following joke: {ev.joke}"
        return StopEvent(result=str(await OpenAI(model="gpt-4o").acomplete(prompt)))


async def run() -> str:
    flow = attach(JokeFlow(timeout=60, verbose=False))  # the one line
    return str(await flow.run(topic="pirates"))


APP = App(
    "Joke flow",
    (
        Role("critique_joke", "Give a thorough analysis", ["It is short."]),
        Role("generate_joke", "Write your best joke", ["Arr."]),
    ),
    run,
    "It is short.",
    {"generate_joke": 1, "critique_joke": 1},
)
