"""A financial report: planned, searched, written with two analysts as tools, verified; with a guardrail.

After openai/openai-agents-python, examples/financial_research_agent/manager.py: FinancialPlannerAgent,
FinancialSearchAgent, FundamentalsAnalystAgent and RiskAnalystAgent as tools with a
`custom_output_extractor`, on a clone of FinancialWriterAgent, VerificationAgent, `run_streamed`. The
guardrail is that of examples/agent_patterns/input_guardrails.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    RunContextWrapper,
    Runner,
    RunResult,
    function_tool,
    input_guardrail,
)
from lightning_openai_agents import attach
from pydantic import BaseModel

from tests.apps.stage import App, Role


class SearchPlan(BaseModel):
    searches: list[str]


class AnalysisSummary(BaseModel):
    summary: str


class ReportData(BaseModel):
    short_summary: str
    markdown_report: str


class VerificationResult(BaseModel):
    verified: bool
    issues: str


class Homework(BaseModel):
    reasoning: str
    is_homework: bool


guard = Agent[None](
    name="Guardrail check", instructions="Check if the user asks for homework.", output_type=Homework
)


@input_guardrail
async def no_homework(
    context: RunContextWrapper[None], agent: Agent[Any], asked: Any
) -> GuardrailFunctionOutput:
    checked = (await Runner.run(guard, asked, context=context.context)).final_output_as(Homework)
    return GuardrailFunctionOutput(output_info=checked, tripwire_triggered=checked.is_homework)


@function_tool
def web_search(query: str) -> str:
    """Search the web."""
    return f"{query}: up."


async def summary_of(result: RunResult) -> str:
    return str(result.final_output.summary)


def build_agents() -> dict[str, Agent[None]]:
    agents = [
        Agent[None](
            name="FinancialPlannerAgent",
            instructions="You are a financial research planner.",
            output_type=SearchPlan,
            input_guardrails=[no_homework],
        ),
        Agent[None](
            name="FinancialSearchAgent",
            instructions="You are a research assistant specializing in financial topics.",
            tools=[web_search],
            model_settings=ModelSettings(tool_choice="required"),
        ),
        Agent[None](
            name="FundamentalsAnalystAgent",
            instructions="You look at fundamentals.",
            output_type=AnalysisSummary,
        ),
        Agent[None](
            name="RiskAnalystAgent", instructions="You look for red flags.", output_type=AnalysisSummary
        ),
        Agent[None](
            name="FinancialWriterAgent",
            instructions="You are a senior financial analyst.",
            output_type=ReportData,
        ),
        Agent[None](
            name="VerificationAgent",
            instructions="You are a meticulous auditor.",
            output_type=VerificationResult,
        ),
    ]
    return {agent.name: agent for agent in agents}


async def run() -> str:
    agents = build_agents()
    attach(agents["FinancialPlannerAgent"])  # the one line
    plan = (await Runner.run(agents["FinancialPlannerAgent"], "Query: Apple")).final_output_as(SearchPlan)
    found = await asyncio.gather(
        *(Runner.run(agents["FinancialSearchAgent"], term) for term in plan.searches)
    )
    tools: list[Any] = [
        agents[name].as_tool(tool, "Use to get a short write-up.", custom_output_extractor=summary_of)  # type: ignore[arg-type]
        for name, tool in (
            ("FundamentalsAnalystAgent", "fundamentals_analysis"),
            ("RiskAnalystAgent", "risk_analysis"),
        )
    ]
    writer = agents["FinancialWriterAgent"].clone(tools=tools)
    writing = Runner.run_streamed(writer, f"Results: {[one.final_output for one in found]}")
    async for _ in writing.stream_events():
        pass
    report = writing.final_output_as(ReportData)
    verdict = await Runner.run(agents["VerificationAgent"], report.markdown_report)
    return f"{report.short_summary} {verdict.final_output_as(VerificationResult).verified}"


ASK = [("web_search", {"query": "AAPL"})]
APP = App(
    "Financial research",
    (
        Role("Guardrail check", "Check if the user asks", ['{"reasoning": "none", "is_homework": false}']),
        Role(
            "FinancialPlannerAgent",
            "You are a financial research planner.",
            ['{"searches": ["revenue", "risks"]}'],
        ),
        Role("FinancialSearchAgent", "specializing in financial topics", [ASK, ASK, "Up."]),
        Role(
            "FinancialWriterAgent",
            "You are a senior financial analyst.",
            [
                [("fundamentals_analysis", {"input": "Apple"}), ("risk_analysis", {"input": "Apple"})],
                '{"short_summary": "Buy.", "markdown_report": "# Apple"}',
            ],
        ),
        Role("FundamentalsAnalystAgent", "You look at fundamentals.", ['{"summary": "Fine."}']),
        Role("RiskAnalystAgent", "You look for red flags.", ['{"summary": "None."}']),
        Role("VerificationAgent", "You are a meticulous auditor.", ['{"verified": true, "issues": ""}']),
    ),
    run,
    "Buy. True",
    {
        "Guardrail check": 1,
        "FinancialPlannerAgent": 1,
        "FinancialSearchAgent": 4,
        "FinancialWriterAgent": 2,
        "FundamentalsAnalystAgent": 1,
        "RiskAnalystAgent": 1,
        "VerificationAgent": 1,
    },
)
