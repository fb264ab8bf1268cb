"""Customer support: a triage agent hands over to those for refunds, orders and returns, and asks its user.

After microsoft/agent-framework, python/samples/03-workflows/orchestrations/handoff_simple.py:
HandoffBuilder in a mesh, tools that need no approval, a history for each call of the service, scripted
answers of the user.
"""

from __future__ import annotations

from typing import Annotated, Any

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework_orchestrations import HandoffAgentUserRequest, HandoffBuilder
from lightning_agent_framework import attach

from tests.apps.stage import App, Role


@tool(approval_mode="never_require")
def process_refund(order_number: Annotated[str, "Order number"]) -> str:
    """Simulated function to process a refund for a given order number."""
    return f"Refund processed for order {order_number}."


@tool(approval_mode="never_require")
def process_return(order_number: Annotated[str, "Order number"]) -> str:
    """Simulated function to process a return for a given order number."""
    return f"Return initiated for order {order_number}."


def build_workflow() -> Any:
    client = OpenAIChatCompletionClient("gpt-4o")

    def make(name: str, instructions: str, *tools: Any) -> Agent:
        options: Any = {"require_per_service_call_history_persistence": True}
        return Agent(client, instructions, name=name, tools=list(tools), **options)

    triage = make("triage_agent", "You are frontline support triage.")
    refund = make("refund_agent", "You process refund requests.", process_refund)
    order = make("order_agent", "You handle order and shipping inquiries.")
    give_back = make("return_agent", "You manage product return requests.", process_return)
    builder = HandoffBuilder(
        name="customer_support_handoff",
        participants=[triage, refund, order, give_back],
        termination_condition=lambda told: bool(told) and "welcome" in told[-1].text.lower(),
    )
    return builder.with_start_agent(triage).build()


async def run() -> str:
    workflow = attach(build_workflow())  # the one line
    answers = ["It arrived damaged. I want to return it.", "And a refund, please.", "Thanks."]
    events = [event async for event in workflow.run("Hello, I need assistance.", stream=True)]
    said = []
    while True:
        said += [str(getattr(event.data, "text", "")) for event in events if event.type == "output"]
        asked = [event for event in events if event.type == "request_info"]
        if not asked:
            return " ".join(said)
        answer = HandoffAgentUserRequest.create_response(answers.pop(0))
        events = list(await workflow.run(responses={event.request_id: answer for event in asked}))


APP = App(
    "Support by handoffs",
    (
        Role(
            "triage_agent", "You are frontline support triage.", ["What?", [("handoff_to_return_agent", {})]]
        ),
        Role(
            "return_agent",
            "You manage product return requests.",
            [
                [("process_return", {"order_number": "1"})],
                "It is initiated.",
                [("handoff_to_refund_agent", {})],
            ],
        ),
        Role(
            "refund_agent",
            "You process refund requests.",
            [[("process_refund", {"order_number": "1"})], "It is done.", "You're welcome!"],
        ),
        Role("order_agent", "You handle order and shipping inquiries.", ["Never asked."]),
    ),
    run,
    "welcome",
    {"triage_agent": 2, "return_agent": 3, "refund_agent": 3},
)
