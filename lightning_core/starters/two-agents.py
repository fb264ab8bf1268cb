"""One agent proposes a team for a message, another decides. Try it: python app.py "Where is it?"."""

import asyncio
import os
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

TRIAGE = "Which team answers this message: billing, shipping or account?"
CHECK = "A colleague proposes a team for this message. Which team is right: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Team(BaseModel):
    team: Literal["billing", "shipping", "account"]


class State(TypedDict, total=False):
    message: str
    proposed: str
    team: str


llm = ChatOpenAI(
    model=os.environ.get("MODEL", "gpt-5-mini"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    max_tokens=LONGEST,
).with_structured_output(Team, method="json_schema")


async def triage(state: State) -> State:
    reply = await llm.ainvoke([("system", TRIAGE), ("user", state["message"])])
    return {"proposed": reply.team}


async def check(state: State) -> State:
    asked = f"{state['message']}\nProposed: {state['proposed']}"
    reply = await llm.ainvoke([("system", CHECK), ("user", asked)])
    return {"team": reply.team}


graph = StateGraph(State).add_sequence([triage, check]).add_edge(START, "triage").compile()


async def answer(message: str) -> str:
    return (await graph.ainvoke({"message": message}))["team"]


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
