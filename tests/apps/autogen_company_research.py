"""Three agents in turn: search, analyse a stock, write the report.

After microsoft/autogen, python/docs/src/user-guide/agentchat-user-guide/examples/company-research.ipynb: a
RoundRobinGroupChat of Google_Search_Agent, Stock_Analysis_Agent and Report_Agent with a tool each for the
first two, `max_turns=3`, run as a stream.
"""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach

from tests.apps.stage import App, Role


def google_search(query: str, num_results: int = 2) -> list[str]:
    """Search."""
    return [query] * num_results


def analyze_stock(ticker: str) -> dict[str, float]:
    """Figures of a stock."""
    return {"price": 10.0}


def build_team(client: OpenAIChatCompletionClient) -> RoundRobinGroupChat:
    search = AssistantAgent(
        "Google_Search_Agent",
        client,
        tools=[FunctionTool(google_search, "Search Google.")],
        description="Search Google for information",
        system_message="You are a helpful AI assistant. Solve tasks using your tools.",
    )
    stock = AssistantAgent(
        "Stock_Analysis_Agent",
        client,
        tools=[FunctionTool(analyze_stock, "Analyze stock data.")],
        description="Analyze stock data",
        system_message="Perform data analysis.",
    )
    report = AssistantAgent(
        "Report_Agent",
        client,
        description="Generate a report",
        system_message="You are a helpful assistant that can generate a comprehensive report.",
    )
    return RoundRobinGroupChat([stock, search, report], max_turns=3)


async def run() -> str:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    team = attach(build_team(client))  # the one line
    async for message in team.run_stream(task="Write a financial report on American airlines"):
        last = message
    await client.close()
    return str(last.messages[-1].content)  # type: ignore[union-attr]


APP = App(
    "Company research",
    (
        Role("Stock_Analysis_Agent", "Perform data analysis.", [[("analyze_stock", {"ticker": "AAL"})]]),
        Role(
            "Google_Search_Agent",
            "Solve tasks using your tools.",
            [[("google_search", {"query": "AAL", "num_results": 2})]],
        ),
        Role("Report_Agent", "generate a comprehensive report", ["Sell it. TERMINATE"]),
    ),
    run,
    "Sell it.",
    {"Stock_Analysis_Agent": 1, "Google_Search_Agent": 1, "Report_Agent": 1},
)
