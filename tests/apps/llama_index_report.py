"""Research, write and review a report: three agents that hand over to one another and share a state.

After the docs of run-llama/llama_index, "Multi-agent patterns" (agent_workflow_multi): FunctionAgents with
`can_handoff_to`, an AgentWorkflow with a root agent and an initial state, tools that write into the context.
"""

from lightning_llama_index import attach
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.workflow import Context
from llama_index.llms.openai import OpenAI

from tests.apps.stage import App, Role


async def record_notes(ctx: Context, notes: str, notes_title: str) -> str:
    """Useful for recording notes on a given topic."""
    async with ctx.store.edit_state() as state:
        state["state"]["research_notes"][notes_title] = notes
    return "Notes recorded."


async def write_report(ctx: Context, report_content: str) -> str:
    """Useful for writing a report on a given topic."""
    async with ctx.store.edit_state() as state:
        state["state"]["report_content"] = report_content
    return "Report written."


async def review_report(ctx: Context, review: str) -> str:
    """Useful for reviewing a report and providing feedback."""
    async with ctx.store.edit_state() as state:
        state["state"]["review"] = review
    return "Report reviewed."


def build_workflow() -> AgentWorkflow:
    llm = OpenAI(model="gpt-4o")
    research = FunctionAgent(
        name="ResearchAgent",
        description="Useful for recording research notes.",
        system_prompt="You are the ResearchAgent that can record notes.",
        llm=llm,
        tools=[record_notes],
        can_handoff_to=["WriteAgent"],
    )
    write = FunctionAgent(
        name="WriteAgent",
        description="Useful for writing a report on a given topic.",
        system_prompt="You are the WriteAgent that can write a report.",
        llm=llm,
        tools=[write_report],
        can_handoff_to=["ReviewAgent", "ResearchAgent"],
    )
    review = FunctionAgent(
        name="ReviewAgent",
        description="Useful for reviewing a report.",
        system_prompt="You are the ReviewAgent that can review a report.",
        llm=llm,
        tools=[review_report],
        can_handoff_to=["WriteAgent"],
    )
    return AgentWorkflow(
        agents=[research, write, review],
        root_agent=research.name,
        initial_state={
            "research_notes": {},
            "report_content": "Not written yet.",
            "review": "Review required.",
        },
    )


async def run() -> str:
    workflow = attach(build_workflow())  # the one line
    handler = workflow.run(user_msg="Write me a report on the history of the web.")
    agents = []
    async for event in handler.stream_events():
        if (name := getattr(event, "current_agent_name", None)) and name not in agents:
            agents.append(name)
    return f"{await handler} {agents}"


def hand(name: str) -> list[tuple[str, dict[str, object]]]:
    return [("handoff", {"to_agent": name, "reason": "it is due"})]


APP = App(
    "Report",
    (
        Role(
            "ResearchAgent",
            "You are the ResearchAgent",
            [[("record_notes", {"notes": "1989", "notes_title": "web"})], hand("WriteAgent")],
        ),
        Role(
            "WriteAgent",
            "You are the WriteAgent",
            [[("write_report", {"report_content": "In 1989."})], hand("ReviewAgent")],
        ),
        Role(
            "ReviewAgent",
            "You are the ReviewAgent",
            [[("review_report", {"review": "Good."})], "The report is good."],
        ),
    ),
    run,
    "The report is good. ['ResearchAgent', 'WriteAgent', 'ReviewAgent']",
    {"ResearchAgent": 2, "WriteAgent": 2, "ReviewAgent": 2},
)
