"""A crew for marketing: research, understand, strategy, campaign, copy; the last three as typed objects.

After crewAIInc/crewAI-examples, crews/marketing_strategy/src/marketing_posts/crew.py and
config/agents.yaml: lead_market_analyst, chief_marketing_strategist, creative_content_creator, `output_json`
of two tasks, sequential process, tools on two agents; with the `planning` that the documentation of crews
shows.
"""

from __future__ import annotations

from crewai import Agent, Crew, Process, Task
from crewai.tools import tool
from lightning_crewai import attach
from pydantic import BaseModel, Field

from tests.apps.stage import App, Role


class MarketStrategy(BaseModel):
    """Market strategy model."""

    name: str = Field(description="Name of the market strategy")
    tactics: list[str] = Field(description="List of tactics to be used in the market strategy")


class Copy(BaseModel):
    """Copy model."""

    title: str = Field(description="Title of the copy")
    body: str = Field(description="Body of the copy")


@tool("search_web")
def search_web(search_query: str) -> str:
    """Search the web."""
    return "Many like it."


def build_crew() -> Crew:
    analyst = Agent(
        role="Lead Market Analyst",
        goal="Conduct amazing analysis of the products and competitors.",
        backstory="As the Lead Market Analyst you dissect online business landscapes.",
        tools=[search_web],
        llm="gpt-4o",
    )
    strategist = Agent(
        role="Chief Marketing Strategist",
        goal="Synthesize amazing insights from product analysis.",
        backstory="You are the Chief Marketing Strategist at a leading digital marketing agency.",
        tools=[search_web],
        llm="gpt-4o",
    )
    creator = Agent(
        role="Creative Content Creator",
        goal="Develop compelling and innovative content.",
        backstory="As a Creative Content Creator you craft narratives.",
        llm="gpt-4o",
    )
    research = Task(description="Research the customer.", expected_output="A report.", agent=analyst)
    strategy = Task(
        description="Formulate a strategy.",
        expected_output="A strategy.",
        agent=strategist,
        output_json=MarketStrategy,
    )
    copy = Task(
        description="Create marketing copies.",
        expected_output="A copy.",
        agent=creator,
        context=[strategy, research],
        output_pydantic=Copy,
    )
    return Crew(
        agents=[analyst, strategist, creator],
        tasks=[research, strategy, copy],
        process=Process.sequential,
        planning=True,
        planning_llm="gpt-4o",
    )


def run() -> str:
    crew = attach(build_crew())  # the one line
    result = crew.kickoff(inputs={"customer_domain": "crewai.com"})
    return str(result.pydantic)


PLAN = '{"list_of_plans_per_task": [%s]}' % ", ".join(  # noqa: UP031
    f'{{"task_number": {number}, "task": "it", "plan": "do it"}}' for number in (1, 2, 3)
)
APP = App(
    "Marketing strategy",
    (
        Role("Task Execution Planner", "Task Execution Planner", [PLAN]),
        Role(
            "Lead Market Analyst",
            "As the Lead Market Analyst",
            [[("search_web", {"search_query": "crewai"})], "Many."],
        ),
        Role(
            "Chief Marketing Strategist",
            "You are the Chief Marketing",
            ['{"name": "Ads", "tactics": ["post"]}'],
        ),
        Role(
            "Creative Content Creator",
            "As a Creative Content Creator",
            ['{"title": "Crews", "body": "Buy."}'],
        ),
    ),
    run,
    "title='Crews'",
    {
        "Task Execution Planner": 1,
        "Lead Market Analyst": 2,
        "Chief Marketing Strategist": 1,
        "Creative Content Creator": 1,
    },
)
