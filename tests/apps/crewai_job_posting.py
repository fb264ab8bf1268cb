"""A job posting by a class with `@CrewBase`: two studies, requirements as JSON, a draft, a review.

After crewAIInc/crewAI-examples, crews/job-posting/src/job_posting/crew.py: research_agent, writer_agent and
review_agent by decorators, `output_json` of one task, sequential.
"""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Process, Task
from crewai.project import CrewBase, agent, crew, task
from lightning_crewai import attach
from pydantic import BaseModel

from tests.apps.stage import App, Role


class RoleRequirements(BaseModel):
    """Research role requirements model"""

    skills: list[str]
    experience: list[str]


def worker(role: str, backstory: str) -> Agent:
    return Agent(role=role, goal="Help to hire.", backstory=backstory, llm="gpt-4o")


@CrewBase
class JobPostingCrew:
    """JobPosting crew"""

    agents_config: Any = None
    tasks_config: Any = None
    agents: Any
    tasks: Any

    @agent
    def research_agent(self) -> Agent:
        return worker("Research Analyst", "Expert in analyzing company cultures.")

    @agent
    def writer_agent(self) -> Agent:
        return worker("Job Description Writer", "Skilled in crafting compelling job descriptions.")

    @agent
    def review_agent(self) -> Agent:
        return worker("Review and Editing Specialist", "A meticulous editor with an eye for detail.")

    @task
    def research_company_culture_task(self) -> Task:
        return Task(
            description="Analyze the company.",
            expected_output="A report.",
            agent=self.research_agent(),
        )

    @task
    def industry_analysis_task(self) -> Task:
        return Task(
            description="Analyze the industry.",
            expected_output="A report.",
            agent=self.research_agent(),
        )

    @task
    def research_role_requirements_task(self) -> Task:
        return Task(
            description="Identify the skills.",
            expected_output="A list.",
            agent=self.research_agent(),
            output_json=RoleRequirements,
        )

    @task
    def draft_job_posting_task(self) -> Task:
        return Task(description="Draft it.", expected_output="A draft.", agent=self.writer_agent())

    @task
    def review_and_edit_job_posting_task(self) -> Task:
        return Task(description="Review it.", expected_output="A posting.", agent=self.review_agent())

    @crew
    def crew(self) -> Crew:
        return Crew(agents=self.agents, tasks=self.tasks, process=Process.sequential)


def run() -> str:
    job = attach(JobPostingCrew())  # the one line
    return str(job.crew().kickoff(inputs={"company_domain": "careers.wbd.com"}).raw)


APP = App(
    "Job posting",
    (
        Role(
            "Research Analyst",
            "Expert in analyzing company cultures.",
            ["Kind.", "Kind.", '{"skills": ["SQL"], "experience": ["one year"]}'],
        ),
        Role("Job Description Writer", "Skilled in crafting", ["We hire."]),
        Role("Review and Editing Specialist", "A meticulous editor", ["We hire you."]),
    ),
    run,
    "We hire you.",
    {"Research Analyst": 3, "Job Description Writer": 1, "Review and Editing Specialist": 1},
)
