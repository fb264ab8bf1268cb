"""Decides what to do about a customer's message: a triage agent picks a desk, the desk picks the action.

    print(await decide("I was charged twice for the blue lamp."))

An AutoGen `GraphFlow` whose agents answer in structured output. The model is the one named by SUPPORT_MODEL,
or the client given to `build_team`.
"""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage, StructuredMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_core.models import ChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Triage(BaseModel):
    """The desk that a message goes to."""

    desk: Literal["billing", "shipping", "account"]


class Billing(BaseModel):
    action: Literal["refund", "invoice", "card"]


class Shipping(BaseModel):
    action: Literal["track", "replace", "address"]


class Account(BaseModel):
    action: Literal["password", "close", "rename"]


Prompts = Mapping[str, str]
DESKS: Final[Mapping[str, type[BaseModel]]] = MappingProxyType(
    {"billing": Billing, "shipping": Shipping, "account": Account}
)
"""Form of each desk's answer."""
PLAIN: Final[Prompts] = MappingProxyType(
    {
        "triage": "Which desk of a shop is this message for: billing, shipping or account?",
        "billing": "You work at the billing desk. What should be done: refund, invoice or card?",
        "shipping": "You work at the shipping desk. What should be done: track, replace or address?",
        "account": "You work at the account desk. What should be done: password, close or rename?",
    }
)
BY_HAND: Final[Prompts] = MappingProxyType(
    {
        "triage": "You sort messages of a shop's customers by desk. billing is for money, bills and cards. "
        "shipping is for parcels: late, broken or sent elsewhere. account is for login, names and leaving.",
        "billing": "You work at the billing desk. refund: they want money back. invoice: they need a bill. "
        "card: they want to pay in another way.",
        "shipping": "You work at the shipping desk. track: they ask where the parcel is. replace: it is "
        "wrong or broken. address: it must go elsewhere.",
        "account": "You work at the account desk. password: they can't log in. close: they want to leave. "
        "rename: their name is wrong.",
    }
)
EXAMPLES: Final[Prompts] = MappingProxyType(
    {
        "triage": " Examples. The bill is too high: billing. My parcel is late: shipping. "
        "The site does not know my password: account.",
        "billing": " Examples. You owe me money: refund. I need a receipt: invoice. I lost my card: card.",
        "shipping": " Examples. Did you send it: track. The glass is broken: replace. I have moved: address.",
        "account": " Examples. I can't sign in: password. Forget me: close. My name has changed: rename.",
    }
)
PROMPTS: Final[Mapping[str, Prompts]] = MappingProxyType(
    {
        "plain": PLAIN,
        "by hand": BY_HAND,
        "more examples": MappingProxyType({name: BY_HAND[name] + EXAMPLES[name] for name in PLAIN}),
    }
)
"""The system prompt of each agent."""


def build_client() -> OpenAIChatCompletionClient:
    """The model named by SUPPORT_MODEL, at the endpoint of OPENAI_BASE_URL when that is set."""
    return OpenAIChatCompletionClient(
        model=os.environ.get("SUPPORT_MODEL", "gpt-4o-mini-2024-07-18"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_tokens=24,
    )


def build_team(client: ChatCompletionClient, prompt: str = "plain") -> GraphFlow:
    """A team for one message, with the prompts of PROMPTS; agents remember, so each message needs its own."""

    def agent(name: str, form: type[BaseModel]) -> AssistantAgent:
        return AssistantAgent(name, client, system_message=PROMPTS[prompt][name], output_content_type=form)

    triage = agent("triage", Triage)
    builder = DiGraphBuilder().add_node(triage)
    for name, form in DESKS.items():
        desk = agent(name, form)
        builder.add_node(desk).add_edge(triage, desk, condition=_is_for(name))
    answers = [StructuredMessage[form] for form in (Triage, *DESKS.values())]  # type: ignore[valid-type]
    return GraphFlow(builder.get_participants(), builder.build(), custom_message_types=[*answers])


async def decide(message: str, client: ChatCompletionClient | None = None) -> str:
    """The action for a message."""
    return read_action(await build_team(client or build_client()).run(task=message))


def read_action(result: TaskResult) -> str:
    """Returns the desk's decision."""
    decided = [m.content for m in result.messages if isinstance(m, StructuredMessage) and m.source in DESKS]
    return str(decided[-1].action) if decided else ""


def _is_for(desk: str) -> Callable[[BaseChatMessage], bool]:
    def check(message: Any) -> bool:
        return bool(message.content.desk == desk)

    return check
