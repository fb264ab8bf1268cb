"""Plan, execute one step at a time, and plan again from what was found.

After langchain-ai/langgraph, docs/docs/tutorials/plan-and-execute/plan-and-execute.ipynb: nodes planner,
agent and replan; `with_structured_output` of a plan, and of a union of answer and plan; a ready-made agent
inside a node; async.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from lightning_langgraph import LightningCallback
from pydantic import BaseModel, Field

from tests.apps.stage import App, Role


class PlanExecute(TypedDict, total=False):
    input: str
    plan: list[str]
    past_steps: Annotated[list[tuple[str, str]], operator.add]
    response: str


class Plan(BaseModel):
    """Plan to follow in future."""

    steps: list[str] = Field(description="different steps to follow, in order")


class Response(BaseModel):
    """Response to user."""

    response: str


class Act(BaseModel):
    """Action to perform."""

    action: Response | Plan = Field(description="To answer, use Response; for more steps, use Plan.")


@tool
def search(query: str) -> str:
    """Search for it."""
    return "The hometown is Clovis."


def build_graph() -> Any:
    model = ChatOpenAI(model="gpt-4o", temperature=0)
    executor = create_agent(model, [search], system_prompt="You execute one step of a plan.")
    planner = ChatPromptTemplate.from_messages(
        [("system", "For the given objective, come up with a simple step by step plan."), ("user", "{input}")]
    ) | model.with_structured_output(Plan)
    replanner = ChatPromptTemplate.from_template(
        "Update your plan accordingly. Objective: {input}. Plan: {plan}. Done: {past_steps}."
    ) | model.with_structured_output(Act, method="function_calling")

    async def plan_step(state: PlanExecute) -> PlanExecute:
        plan: Any = await planner.ainvoke({"input": state["input"]})
        return {"plan": plan.steps}

    async def execute_step(state: PlanExecute) -> PlanExecute:
        done = await executor.ainvoke({"messages": [("user", f"Execute step 1: {state['plan'][0]}")]})
        return {"past_steps": [(state["plan"][0], done["messages"][-1].content)]}

    async def replan_step(state: PlanExecute) -> PlanExecute:
        output: Any = await replanner.ainvoke(dict(state))
        if isinstance(output.action, Response):
            return {"response": output.action.response}
        return {"plan": output.action.steps}

    graph = StateGraph(PlanExecute)
    graph.add_node("planner", plan_step)
    graph.add_node("agent", execute_step)
    graph.add_node("replan", replan_step)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "agent")
    graph.add_edge("agent", "replan")
    graph.add_conditional_edges(
        "replan", lambda state: END if state.get("response") else "agent", ["agent", END]
    )
    return graph.compile()


async def run() -> str:
    graph = build_graph().with_config(callbacks=[LightningCallback()])  # the one line
    async for event in graph.astream({"input": "Where is the winner from?"}, {"recursion_limit": 20}):
        for update in event.values():
            said = update.get("response", "")
    return str(said)


APP = App(
    "Plan and execute",
    (
        Role(
            "planner",
            "come up with a simple step by step plan",
            ['{"steps": ["Find the winner", "Find the town"]}'],
        ),
        Role(
            "agent",
            "You execute one step of a plan.",
            [[("search", {"query": "winner"})], "It is Sinner.", "Sexten."],
        ),
        Role(
            "replan",
            "Update your plan accordingly.",
            [
                [("Act", {"action": {"steps": ["Find the town"]}})],
                [("Act", {"action": {"response": "The winner is from Sexten."}})],
            ],
        ),
    ),
    run,
    "from Sexten",
    {"planner": 1, "agent": 3, "replan": 2},
)
