"""The replies of real SDKs and frameworks name their call, through the real gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider

import lightning_core as lightning
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import RewardError
from lightning_core.records.linking import link_rewards
from lightning_core.tracing.scope import Scope, rollout_scope
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

HI: Any = [{"role": "user", "content": "hi"}]
UNTRACED = RunConfig(tracing_disabled=True)
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)


def says(request: ChatRequest, choice: int) -> Line:
    """Asks for the tools it is offered, else says hi."""
    asked = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for number, _ in enumerate(request.tools or (), 1)
    ]
    return Line("hi", tool_calls=asked or None)


@tool
def look() -> str:
    """Look."""
    return "seen"


def chat(house: House, token: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="any", base_url=f"{house.url}/v1", api_key=token, **options)  # type: ignore[arg-type]


async def whole(chunks: AsyncIterator[Any]) -> Any:
    found = None
    async for chunk in chunks:
        found = chunk if found is None else found + chunk
    return found


async def openai_chat(house: House, token: str) -> Any:
    async with house.client(token) as client:
        return await client.chat.completions.create(model="any", messages=HI)


async def openai_chunk(house: House, token: str) -> Any:
    async with house.client(token) as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(model="any", messages=HI, stream=True)
        ]
    return chunks[0]


async def openai_response(house: House, token: str) -> Any:
    async with house.client(token) as client:
        return await client.responses.create(model="any", input="hi")


async def openai_response_tool_call(house: House, token: str) -> Any:
    looks: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    async with house.client(token) as client:
        response = await client.responses.create(model="any", input="hi", tools=[looks])
    return next(item for item in response.output if item.type == "function_call")


async def openai_completion(house: House, token: str) -> Any:
    async with house.client(token) as client:
        return await client.completions.create(model="any", prompt="hi")


async def anthropic_message(house: House, token: str) -> Any:
    async with anthropic.AsyncAnthropic(base_url=house.url, api_key=token) as client:
        return await client.messages.create(model="any", max_tokens=9, messages=HI)


async def anthropic_stream(house: House, token: str) -> Any:
    async with (
        anthropic.AsyncAnthropic(base_url=house.url, api_key=token) as client,
        client.messages.stream(model="any", max_tokens=9, messages=HI) as stream,
    ):
        return await stream.get_final_message()


async def langchain(house: House, token: str) -> Any:
    return await chat(house, token).ainvoke("hi")


async def langchain_responses(house: House, token: str) -> Any:
    return await chat(house, token, use_responses_api=True).ainvoke("hi")


async def langchain_responses_stream(house: House, token: str) -> Any:
    return await whole(chat(house, token, use_responses_api=True).astream("hi"))


async def langchain_stream_with_tools(house: House, token: str) -> Any:
    return await whole(chat(house, token).bind_tools([look]).astream("hi"))


async def langchain_tool_call(house: House, token: str) -> Any:
    message = await chat(house, token).bind_tools([look]).ainvoke("hi")
    assert isinstance(message, AIMessage)
    return message.tool_calls[0]


async def langchain_tool_message(house: House, token: str) -> Any:
    return await look.ainvoke({**await langchain_tool_call(house, token), "type": "tool_call"})


async def langgraph_state(house: House, token: str) -> Any:
    llm = chat(house, token)

    async def node(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return (await graph.compile().ainvoke({"messages": HI}))["messages"][-1]


async def agents_responses(house: House, token: str) -> Any:
    async with house.client(token) as client:
        agent = Agent(name="x", model=OpenAIResponsesModel("any", client))
        return await Runner.run(agent, "hi", run_config=UNTRACED)


async def agents_raw_response(house: House, token: str) -> Any:
    return (await agents_responses(house, token)).raw_responses[0]


async def pydantic_ai(house: House, token: str) -> Any:
    async with house.client(token) as client:
        model = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client))
        return (await PydanticAgent(model).run("hi")).response


async def pydantic_ai_openrouter(house: House, token: str) -> Any:
    async with house.client(token) as client:
        model = OpenRouterModel("any/any", provider=OpenRouterProvider(openai_client=client))
        return (await PydanticAgent(model).run("hi")).response


async def litellm_openrouter(house: House, token: str) -> Any:
    litellm = pytest.importorskip("litellm")
    return await litellm.acompletion("openrouter/any", HI, api_base=f"{house.url}/v1", api_key=token)


async def autogen_function_call(house: House, token: str) -> Any:
    model = OpenAIChatCompletionClient(
        model="any", model_info=INFO, base_url=f"{house.url}/v1", api_key=token
    )
    offered: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    result = await model.create([UserMessage(content="hi", source="user")], tools=[offered])
    await model.close()
    return result.content[0]


REPLIES: list[Callable[[House, str], Awaitable[Any]]] = [
    openai_chat,
    openai_chunk,
    openai_response,
    openai_response_tool_call,
    openai_completion,
    anthropic_message,
    anthropic_stream,
    langchain,
    langchain_responses,
    langchain_responses_stream,
    langchain_stream_with_tools,
    langchain_tool_call,
    langchain_tool_message,
    langgraph_state,
    agents_responses,
    agents_raw_response,
    pydantic_ai,
    pydantic_ai_openrouter,
    litellm_openrouter,
    autogen_function_call,
]


@pytest.mark.parametrize("make", REPLIES, ids=lambda make: make.__name__)
async def test_a_reward_is_linked_to_the_call_of_the_reply_it_was_given_with(make: Any) -> None:
    async with open_house(ScriptedEngine(says=says)) as house:
        token = await house.rollout()
        with rollout_scope(Scope("r1", 1, house.url, token)) as scope:
            before, reply, after = await openai_chat(house, token), await make(house, token), None
            after = await openai_chat(house, token)
            lightning.reward(0.5, call=reply)
        calls = await house.calls()
    [reward] = link_rewards(calls, scope.rewards)
    others = {before.id, after.id}
    [meant] = [call for call in calls if call.response_id not in others]
    assert reward.call_id == meant.id


async def agents_chat(house: House, token: str) -> Any:
    async with house.client(token) as client:
        agent = Agent(name="x", model=OpenAIChatCompletionsModel("any", client))
        return (await Runner.run(agent, "hi", run_config=UNTRACED)).raw_responses[0]


async def agents_chat_stream(house: House, token: str) -> Any:
    async with house.client(token) as client:
        agent = Agent(name="x", model=OpenAIChatCompletionsModel("any", client))
        result = Runner.run_streamed(agent, "hi", run_config=UNTRACED)
        async for _ in result.stream_events():
            pass
        return result


async def langchain_stream(house: House, token: str) -> Any:
    return await whole(chat(house, token).astream("hi"))


@pytest.mark.parametrize(
    "make", [agents_chat, agents_chat_stream, langchain_stream], ids=lambda make: make.__name__
)
async def test_replies_that_lost_their_id_are_refused_rather_than_guessed(make: Any) -> None:
    async with open_house(ScriptedEngine(says=says)) as house:
        token = await house.rollout()
        reply = await make(house, token)
        with (
            rollout_scope(Scope("r1", 1, house.url, token)),
            pytest.raises(RewardError, match="no id of a reply"),
        ):
            lightning.reward(0.5, call=reply)
