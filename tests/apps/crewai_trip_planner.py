"""A trip: which city, what is there, which days; under a manager that delegates, with a checked last task.

After crewAIInc/crewAI-examples, crews/trip_planner (agents "City Selection Expert", "Local Expert at this
city", "Amazing Travel Concierge"); with the hierarchical process and the guardrail of a task that CrewAI's
documentation shows (docs/en/learn/hierarchical-process, docs/en/concepts/tasks).
"""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Process, Task
from crewai.tools import tool
from lightning_crewai import attach

from tests.apps.stage import App, Role


@tool("calculate")
def calculate(operation: str) -> str:
    """Calculate."""
    return "42"


def has_days(output: Any):  # CrewAI reads an annotation, and takes no text for one
    """A guardrail by code."""
    return ("Day" in output.raw, output.raw if "Day" in output.raw else "Name the days.")


def build_crew() -> Crew:
    selector = Agent(
        role="City Selection Expert",
        goal="Select the best city based on weather, season, and prices",
        backstory="An expert in analyzing travel data to pick ideal destinations",
        llm="gpt-4o",
    )
    local = Agent(
        role="Local Expert at this city",
        goal="Provide the BEST insights about the selected city",
        backstory="A knowledgeable local guide with extensive information",
        llm="gpt-4o",
    )
    concierge = Agent(
        role="Amazing Travel Concierge",
        goal="Create the most amazing travel itineraries",
        backstory="Specialist in travel planning and logistics with decades of experience",
        tools=[calculate],
        llm="gpt-4o",
    )
    identify = Task(description="Analyze and select the best city.", expected_output="A city.")
    plan = Task(
        description="Expand this guide into an itinerary.", expected_output="A plan.", guardrail=has_days
    )
    return Crew(
        agents=[selector, local, concierge],
        tasks=[identify, plan],
        process=Process.hierarchical,
        manager_llm="gpt-4o",
    )


async def run() -> str:
    crew = attach(build_crew())  # the one line
    result = await crew.kickoff_async(inputs={"range": "May"})
    return str(result.raw)


def delegate(coworker: str) -> list[tuple[str, dict[str, Any]]]:
    return [("delegate_work_to_coworker", {"task": "Do it.", "context": "A trip.", "coworker": coworker})]


APP = App(
    "Trip planner",
    (
        Role(
            "Crew Manager",
            "You are a seasoned manager",
            [
                delegate("City Selection Expert"),
                "Rome.",
                delegate("Amazing Travel Concierge"),
                "Something.",
                "Day 1: the Forum.",
            ],
        ),
        Role("City Selection Expert", "An expert in analyzing travel data", ["Rome."]),
        Role("Local Expert at this city", "A knowledgeable local guide", ["Trastevere."]),
        Role(
            "Amazing Travel Concierge",
            "Specialist in travel planning",
            [[("calculate", {"operation": "6*7"})], "It costs 42."],
        ),
    ),
    run,
    "Day 1",
    {"Crew Manager": 5, "City Selection Expert": 1, "Amazing Travel Concierge": 2},
)
