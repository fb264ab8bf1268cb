"""A flow: a crew scores leads, one kickoff for each and all at once; a router; a crew writes to the best.

After crewAIInc/crewAI-examples, flows/lead-score-flow (`@start`, `@listen`, `@router`, `kickoff_async` of a
crew in `asyncio.gather`, "Senior HR Evaluation Expert" with `output_pydantic`, "HR Coordinator"); a step
with a bare `LLM.call` of a `response_format` is from flows/content_creator_flow.
"""

from __future__ import annotations

import asyncio

from crewai import LLM, Agent, Crew, Task
from crewai.flow.flow import Flow, listen, router, start
from lightning_crewai import attach
from pydantic import BaseModel

import lightning_core
from tests.apps.stage import App, Role


class CandidateScore(BaseModel):
    id: str
    score: int


class Leads(BaseModel):
    candidates: list[str] = []
    scores: list[CandidateScore] = []
    subject: str = ""


def crew_of(role: str, backstory: str, output: type[BaseModel] | None = None) -> Crew:
    agent = Agent(role=role, goal="Help to hire.", backstory=backstory, llm="gpt-4o")
    task = Task(
        description="Evaluate {candidate}.", expected_output="It.", agent=agent, output_pydantic=output
    )
    return Crew(agents=[agent], tasks=[task])


class LeadScoreFlow(Flow[Leads]):
    @start()
    def load_leads(self) -> None:
        self.state.candidates = ["Ann", "Bob"]

    @listen(load_leads)
    async def score_leads(self) -> None:
        async def score(candidate: str) -> CandidateScore:
            crew = crew_of("Senior HR Evaluation Expert", "Adept at analyzing candidates.", CandidateScore)
            result = await crew.kickoff_async(inputs={"candidate": candidate})
            return result.pydantic  # type: ignore[no-any-return]

        self.state.scores = await asyncio.gather(*(score(candidate) for candidate in self.state.candidates))

    @router(score_leads)
    def enough(self) -> str:
        return "write" if len(self.state.scores) == 2 else "load_leads"

    @listen("write")
    async def write_emails(self) -> str:
        with lightning_core.agent("subject"):  # a call that has no agent
            self.state.subject = str(LLM(model="gpt-4o").call("Give a subject line."))
        crew = crew_of("HR Coordinator", "Known for clear communication.")
        result = await crew.kickoff_async(inputs={"candidate": self.state.candidates[0]})
        return f"{self.state.subject}: {result.raw}"


async def run() -> str:
    flow = attach(LeadScoreFlow())  # the one line
    return str(await flow.kickoff_async())


APP = App(
    "Lead score flow",
    (
        Role("Senior HR Evaluation Expert", "Adept at analyzing candidates.", ['{"id": "1", "score": 9}']),
        Role("HR Coordinator", "Known for clear communication.", ["Dear Ann"]),
        Role("subject", "Give a subject line.", ["Welcome"]),
    ),
    run,
    "Welcome: Dear Ann",
    {"Senior HR Evaluation Expert": 2, "HR Coordinator": 1, "subject": 1},
)
