"""Answers word problems: a model writes the arithmetic, a calculator works it out.

    graph = build_graph()
    state = graph.invoke({"problem": "Mia has 14 boxes of 6 pens. She gives 9 pens away. How many are left?"})
    print(state["expression"], "=", state["answer"])

The model is the one named by WORDS_MODEL, or the one given to `build_graph`.
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NotRequired, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import SecretStr

from examples.calc.calculator import evaluate, show

Messages = list[tuple[str, str]]
ASKED: Final = "Write the arithmetic that solves the problem."
TWO: Final = (
    ("Anna buys 3 bags of 12 apples and eats 4 apples. How many apples are left?", "3 * 12 - 4"),
    (
        "A coach has 20 balls and buys 10 more. He splits them over 5 teams. How many balls does a team get?",
        "(20 + 10) / 5",
    ),
)
FOUR_MORE: Final = (
    ("A bag holds 11 nuts. How many nuts are in 6 bags?", "11 * 6"),
    ("Kim has 17 dolls and sells 5 dolls. How many dolls are left?", "17 - 5"),
    ("Kim has 4 boxes of 7 cups and gets 3 more cups. How many cups is that?", "4 * 7 + 3"),
    ("Ed sells 8 cakes and then 6 cakes for 3 dollars each. How many dollars does Ed get?", "(8 + 6) * 3"),
)
CAREFUL: Final = (
    "You write arithmetic for a pocket calculator. Use the numbers of the problem, the signs + - * / and "
    "brackets, nothing else. No words, no units, no equals sign and no result."
)


def write_prompt(asked: str, examples: Sequence[tuple[str, str]]) -> Messages:
    """Writes the instructions for the model, with examples as a conversation."""
    turns = (turn for problem, answer in examples for turn in (("user", problem), ("assistant", answer)))
    return [("system", asked), *turns]


PROMPTS: Final[Mapping[str, Messages]] = MappingProxyType(
    {
        "plain": write_prompt(ASKED, TWO),
        "by hand": write_prompt(CAREFUL, TWO),
        "more examples": write_prompt(CAREFUL, (*TWO, *FOUR_MORE)),
    }
)


class State(TypedDict):
    """`problem` comes in; the nodes fill in the rest. `answer` is "error: ..." where there is none."""

    problem: str
    expression: NotRequired[str]
    answer: NotRequired[str]


@tool
def calculator(expression: str) -> str:
    """Evaluate arithmetic, such as (12 + 3) * 4."""
    return show(evaluate(expression))


def build_graph(
    llm: BaseChatModel | None = None, prompt: str = "plain"
) -> CompiledStateGraph[State, None, State, State]:
    """The compiled graph with a prompt of PROMPTS; its node `write_arithmetic` asks the model."""
    model = llm or ChatOpenAI(
        model=os.environ.get("WORDS_MODEL", "gpt-5-mini"),
        api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
        max_completion_tokens=16,
        stop_sequences=["=", "\n"],
    )

    async def write_arithmetic(state: State) -> dict[str, str]:
        reply = await model.ainvoke([*PROMPTS[prompt], ("user", state["problem"])])
        return {"expression": str(reply.text).strip()}

    graph = StateGraph(State)
    graph.add_node("write_arithmetic", write_arithmetic)
    graph.add_node("calculate", calculate)
    graph.add_edge(START, "write_arithmetic")
    graph.add_edge("write_arithmetic", "calculate")
    graph.add_edge("calculate", END)
    return graph.compile()


async def calculate(state: State) -> dict[str, str]:
    """Work the arithmetic out with the tool."""
    try:
        return {"answer": await calculator.ainvoke({"expression": state["expression"]})}
    except ValueError as error:
        return {"answer": f"error: {error}"}
