"""An airline's desk: a triage agent hands over to an FAQ and a seat booking agent, turn after turn.

After openai/openai-agents-python, examples/customer_service/main.py: handoffs both ways, one with a
callback, a shared context, the history carried on to whoever spoke last.
"""

from __future__ import annotations

from agents import Agent, RunContextWrapper, Runner, function_tool, handoff
from lightning_openai_agents import attach
from pydantic import BaseModel

from tests.apps.stage import App, Role


class AirlineContext(BaseModel):
    seat_number: str | None = None
    flight_number: str | None = None


@function_tool(name_override="faq_lookup_tool", description_override="Lookup frequently asked questions.")
async def faq_lookup_tool(question: str) -> str:
    return "There are 120 seats on the plane."


@function_tool
async def update_seat(
    context: RunContextWrapper[AirlineContext], confirmation_number: str, new_seat: str
) -> str:
    """Update the seat of a booking."""
    assert context.context.flight_number is not None
    context.context.seat_number = new_seat
    return f"Updated seat to {new_seat}"


async def on_seat_booking_handoff(context: RunContextWrapper[AirlineContext]) -> None:
    context.context.flight_number = "FLT-123"


def build_agent() -> Agent[AirlineContext]:
    faq = Agent[AirlineContext](
        name="FAQ Agent",
        instructions="You are an FAQ agent.",
        tools=[faq_lookup_tool],
        handoff_description="Answers.",
    )
    seats = Agent[AirlineContext](
        name="Seat Booking Agent", instructions="You are a seat booking agent.", tools=[update_seat]
    )
    triage = Agent[AirlineContext](
        name="Triage Agent",
        instructions="You are a helpful triaging agent.",
        handoffs=[faq, handoff(agent=seats, on_handoff=on_seat_booking_handoff)],
    )
    faq.handoffs.append(triage)
    seats.handoffs.append(triage)
    return triage


async def run() -> str:
    agent = attach(build_agent())  # the one line
    context, items = AirlineContext(), []
    for said in ("How many seats are there?", "Change my seat to 23A, please.", "Thanks."):
        items.append({"content": said, "role": "user"})
        result = await Runner.run(agent, items, context=context)  # type: ignore[arg-type]
        items, agent = result.to_input_list(), result.last_agent  # type: ignore[assignment]
    return f"{context.seat_number}: {result.final_output}"


APP = App(
    "Customer service",
    (
        Role(
            "Triage Agent",
            "You are a helpful triaging agent.",
            [[("transfer_to_faq_agent", {})], [("transfer_to_seat_booking_agent", {})]],
        ),
        Role(
            "FAQ Agent",
            "You are an FAQ agent.",
            [[("faq_lookup_tool", {"question": "seats"})], "120.", [("transfer_to_triage_agent", {})]],
        ),
        Role(
            "Seat Booking Agent",
            "You are a seat booking agent.",
            [[("update_seat", {"confirmation_number": "A1", "new_seat": "23A"})], "Done.", "Welcome."],
        ),
    ),
    run,
    "23A: Welcome.",
    {"Triage Agent": 2, "FAQ Agent": 3, "Seat Booking Agent": 3},
)
