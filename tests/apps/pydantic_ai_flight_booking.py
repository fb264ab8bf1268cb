"""Find a flight by an agent inside another's tool, check it, and read a seat from what the customer says.

After pydantic/pydantic-ai, examples/pydantic_ai_examples/flight_booking.py: search_agent (a union of output
types, an output validator that asks for another try), extraction_agent in its tool, seat_preference_agent,
dependencies, one usage shared by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_pydantic_ai import attach
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, RunUsage, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel

from tests.apps.stage import App, Role


class Flight(BaseModel):
    flight_number: str
    price: int


class NoFlightFound(BaseModel):
    """When no valid flight is found."""


class Seat(BaseModel):
    row: int
    seat: Literal["A", "B", "C"]


@dataclass
class Deps:
    page: str
    most: int


async def run() -> str:
    model = OpenAIChatModel("gpt-4o")
    search_agent = Agent[Deps, Flight | NoFlightFound](
        model,
        output_type=Flight | NoFlightFound,  # type: ignore[arg-type]
        retries=4,
        system_prompt="Your job is to find the cheapest flight for the user.",
        deps_type=Deps,
    )
    extraction_agent = Agent(model, output_type=list[Flight], system_prompt="Extract all the flight details.")
    seat_preference_agent = Agent(
        model, output_type=Seat, system_prompt="Extract the user's seat preference."
    )

    @search_agent.tool
    async def extract_flights(ctx: RunContext[Deps]) -> list[Flight]:
        """Get details of all flights."""
        return (await extraction_agent.run(ctx.deps.page, usage=ctx.usage)).output

    @search_agent.output_validator
    async def validate(ctx: RunContext[Deps], output: Flight | NoFlightFound) -> Flight | NoFlightFound:
        if isinstance(output, Flight) and output.price > ctx.deps.most:
            raise ModelRetry("That is too dear.")
        return output

    attach(search_agent)  # the one line
    usage = RunUsage()
    found = await search_agent.run(
        "Find me a flight to ANC",
        deps=Deps("SFO-AK123", 300),
        usage=usage,
        usage_limits=UsageLimits(request_limit=15),
    )
    seat = await seat_preference_agent.run("seat A in row 3", usage=usage)
    return f"{found.output} {seat.output} {usage.requests}"


def flight(price: int) -> dict[str, object]:
    return {"flight_number": "AK123", "price": price}


APP = App(
    "Flight booking",
    (
        Role(
            "search_agent",
            "Your job is to find the cheapest flight",
            [
                [("extract_flights", {})],
                [("final_result_Flight", flight(500))],
                [("final_result_Flight", flight(250))],
            ],
        ),
        Role("extraction_agent", "Extract all the flight", [[("final_result", {"response": [flight(250)]})]]),
        Role(
            "seat_preference_agent", "Extract the user's seat", [[("final_result", {"row": 3, "seat": "A"})]]
        ),
    ),
    run,
    "price=250 row=3 seat='A' 5",
    {"search_agent": 3, "extraction_agent": 1, "seat_preference_agent": 1},
)
