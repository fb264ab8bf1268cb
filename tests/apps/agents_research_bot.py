"""Plan searches, make them all at once, and write a report that is read as a stream.

After openai/openai-agents-python, examples/research_bot/manager.py and agents/: PlannerAgent and
WriterAgent with an `output_type`, "Search agent" with `tool_choice="required"`, `asyncio.create_task` for
each search, `run_streamed`. The search tool is a function here, and no hosted one.
"""

from __future__ import annotations

import asyncio
import json

from agents import Agent, ModelSettings, Runner, function_tool, trace
from lightning_openai_agents import attach
from pydantic import BaseModel

from tests.apps.stage import App, Role


class WebSearchItem(BaseModel):
    reason: str
    query: str


class WebSearchPlan(BaseModel):
    searches: list[WebSearchItem]


class ReportData(BaseModel):
    short_summary: str
    markdown_report: str
    follow_up_questions: list[str]


@function_tool
def web_search(query: str) -> str:
    """Search the web."""
    return f"Something about {query}."


planner = Agent(
    name="PlannerAgent",
    instructions="You are a helpful research assistant. Come up with a set of web searches.",
    model="gpt-4o",
    output_type=WebSearchPlan,
)
search = Agent(
    name="Search agent",
    instructions="You are a research assistant. Given a search term, you search the web for that term.",
    tools=[web_search],
    model_settings=ModelSettings(tool_choice="required"),
)
writer = Agent(
    name="WriterAgent",
    instructions="You are a senior researcher tasked with writing a cohesive report.",
    model="o3-mini",
    output_type=ReportData,
)


async def run() -> str:
    attach(planner)  # the one line
    with trace("Research trace"):
        plan = (await Runner.run(planner, "Query: Caribbean vacation spots")).final_output_as(WebSearchPlan)

        async def look(item: WebSearchItem) -> str | None:
            try:
                found = await Runner.run(search, f"Search term: {item.query}\nReason: {item.reason}")
                return str(found.final_output)
            except Exception:
                return None

        tasks = [asyncio.create_task(look(item)) for item in plan.searches]
        results = [found for task in asyncio.as_completed(tasks) if (found := await task) is not None]
        report = Runner.run_streamed(
            writer, f"Original query: vacation\nSummarized search results: {results}"
        )
        async for _ in report.stream_events():
            pass
    return f"{len(results)}: {report.final_output_as(ReportData).short_summary}"


PLAN = json.dumps({"searches": [{"reason": "a", "query": "b"}] * 3})
REPORT = {"short_summary": "Go to Aruba.", "markdown_report": "# Aruba", "follow_up_questions": ["When?"]}
ASK = [("web_search", {"query": "beaches"})]
APP = App(
    "Research bot",
    (
        Role("PlannerAgent", "You are a helpful research assistant.", [PLAN]),
        Role("Search agent", "You are a research assistant.", [ASK, ASK, ASK, "Beaches."]),
        Role(
            "WriterAgent",
            "You are a senior researcher",
            [json.dumps(REPORT)],
        ),
    ),
    run,
    "3: Go to Aruba.",
    {"PlannerAgent": 1, "Search agent": 6, "WriterAgent": 1},
)
