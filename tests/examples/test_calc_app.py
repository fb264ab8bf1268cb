"""The calculator agent, with scripted replies in place of a model."""

import pytest
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient

from examples.calc.app import MAX_CALCULATIONS, build_agent, build_client

QUESTION = "A boat carries 14 crates with 23 books each. How many books is that?"
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
)


def scripted(*replies: str | CreateResult) -> ReplayChatCompletionClient:
    return ReplayChatCompletionClient(list(replies), model_info=INFO)


def calculate(expression: str) -> CreateResult:
    call = FunctionCall("1", f'{{"expression": "{expression}"}}', "calculator")
    return CreateResult(
        finish_reason="function_calls", content=[call], usage=RequestUsage(1, 1), cached=False
    )


async def run(*replies: str | CreateResult) -> tuple[str, list[str]]:
    """(the answer, what the calculator said)."""
    result = await build_agent(scripted(*replies)).run(task=QUESTION)
    events = [message for message in result.messages if isinstance(message, ToolCallExecutionEvent)]
    return result.messages[-1].to_text(), [outcome.content for event in events for outcome in event.content]


async def test_the_solver_calculates_and_answers() -> None:
    assert await run(calculate("14*23"), "322") == ("322", ["322"])


async def test_the_solver_may_calculate_in_steps() -> None:
    assert await run(calculate("14*23"), calculate("322+9"), "331") == ("331", ["322", "331"])


async def test_the_solver_may_answer_without_calculating() -> None:
    assert await run("300") == ("300", [])


async def test_the_solver_is_told_what_the_calculator_refused_and_tries_again() -> None:
    answer, calculated = await run(calculate("14 x 23"), calculate("14*23"), "322")
    assert (answer, calculated) == ("322", ["'14 x 23' is not arithmetic", "322"])


async def test_the_calculator_is_used_a_few_times_at_most() -> None:
    assert await run(*[calculate("1+1")] * MAX_CALCULATIONS) == ("2", ["2"] * MAX_CALCULATIONS)


def test_the_default_client_is_built_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("CALC_MODEL", "gpt-4.1-2025-04-14")
    client = build_client()
    assert isinstance(client, OpenAIChatCompletionClient)
    assert client.dump_component().config["model"] == "gpt-4.1-2025-04-14"
