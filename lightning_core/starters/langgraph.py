"""Says which team a customer's message is for. Try it: python app.py "My card was charged twice"."""

import asyncio
import os
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

PROMPT = "Which team answers this message: billing, shipping or account?"
LONGEST = 256  # tokens of a reply: one that runs on would hold up the others


class Triage(BaseModel):
    team: Literal["billing", "shipping", "account"]


class State(TypedDict, total=False):
    message: str
    team: str


llm = ChatOpenAI(
    model=os.environ.get("MODEL", "gpt-5-mini"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    max_tokens=LONGEST,
).with_structured_output(Triage, method="json_schema")


async def triage(state: State) -> State:
    reply = await llm.ainvoke([("system", PROMPT), ("user", state["message"])])
    return {"team": reply.team}


graph = StateGraph(State).add_node(triage).add_edge(START, "triage").compile()


async def answer(message: str) -> str:
    return (await graph.ainvoke({"message": message}))["team"]


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1])))
