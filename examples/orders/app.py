"""Reads an order in plain English into a form.

    order = await read_order("Three lamps to Lyon, please, and hurry. Best wishes from Paris, Ann")

An OpenAI Agents SDK agent whose `output_type` is the form, so replies are held to its JSON Schema. The model
is the one named by ORDERS_MODEL.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from agents import Agent, ModelBehaviorError, ModelSettings, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI
from pydantic import BaseModel

ONE: Final = """\
Read the order into a form. Example:
Four forks for our flat in Bonn. No need to hurry. Uli from Kiel
{"quantity": 4, "item": "forks", "city": "Bonn", "express": false}"""
BY_HAND: Final = f"""\
quantity: how many, as a number; a dozen is 12. item: the one word for what is ordered.
city: where it must go, which is not where the writer lives. express: true if it is urgent.
{ONE}"""
THREE: Final = f"""\
{BY_HAND}
Send eight spoons to the hotel in Graz, now! Ute, Linz
{{"quantity": 8, "item": "spoons", "city": "Graz", "express": true}}
A dozen plates go to Basel. We have time. Max from Chur
{{"quantity": 12, "item": "plates", "city": "Basel", "express": false}}"""
PROMPTS: Final[Mapping[str, str]] = MappingProxyType(
    {"plain": ONE, "by hand": BY_HAND, "more examples": THREE}
)
CONFIG = RunConfig(tracing_disabled=True)
"""Nothing is sent to the SDK's maker."""


class Order(BaseModel):
    """The form."""

    quantity: int
    item: str
    city: str
    express: bool


def build_agent(prompt: str = "plain") -> Agent[None]:
    """The agent with a prompt of PROMPTS, on the Responses API at OPENAI_BASE_URL, by default OpenAI's."""
    client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"))
    return Agent[None](
        name="clerk",
        instructions=PROMPTS[prompt],
        output_type=Order,
        model=OpenAIResponsesModel(os.environ.get("ORDERS_MODEL", "gpt-5-mini"), client),
        model_settings=ModelSettings(max_tokens=48),
    )


async def read_order(text: str, agent: Agent[None] | None = None) -> Order | None:
    """The filled form; None where the reply is not whole."""
    try:
        result = await Runner.run(agent or build_agent(), text, run_config=CONFIG)
    except ModelBehaviorError:
        return None
    return result.final_output_as(Order)
