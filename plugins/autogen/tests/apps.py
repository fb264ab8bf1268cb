"""Teams as users write them. Every prompt says which rollout and agent it truly belongs to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig, PerSourceFilter
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import AgentRuntime, CancellationToken
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lightning_core.testing.truth import mark

App = Any
MANAGER = "SelectorGroupChatManager"


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that an app of one rollout is built with: its agents keep their conversations."""

    rollout: str
    client: OpenAIChatCompletionClient
    stream: bool = False
    runtime: AgentRuntime | None = None

    def prompt(self, name: str, **marks: object) -> str:
        return mark(rollout=self.rollout, agent=name, **marks)

    def agent(self, name: str, *, tools: Any = None, **more: Any) -> AssistantAgent:
        marks = {key: more.pop(key) for key in ("calls", "slow", "fail", "key") if key in more}
        return AssistantAgent(
            name,
            self.client,
            system_message=self.prompt(name, **marks),
            model_client_stream=self.stream,
            tools=tools,
            **more,
        )


Build = Callable[[Kit], App]


def round_robin(kit: Kit) -> App:
    """Two agents, two turns each."""
    return RoundRobinGroupChat([kit.agent("write"), kit.agent("check")], max_turns=4, runtime=kit.runtime)


def selector(kit: Kit, turns: int = 2) -> App:
    """The manager asks the model who is next. The model's answer, "it is done", names one of the two."""
    return SelectorGroupChat(
        [kit.agent("done"), kit.agent("never")],
        kit.client,
        max_turns=turns,
        selector_prompt=kit.prompt(MANAGER) + "{history}",
        allow_repeated_speaker=True,
        model_client_streaming=kit.stream,
        runtime=kit.runtime,
    )


def swarm(kit: Kit) -> App:
    """Alice hands over to bob."""
    alice = kit.agent("alice", handoffs=["bob"], calls="transfer_to_bob")
    return Swarm([alice, kit.agent("bob", handoffs=["alice"])], max_turns=2, runtime=kit.runtime)


def graph_flow(kit: Kit) -> App:
    """One agent, then four at once, then one that waits for them all."""
    middle = [kit.agent(name, slow=0.01) for name in ("north", "east", "south", "west")]
    plan, join = kit.agent("plan"), kit.agent("join")
    builder = DiGraphBuilder()
    for node in (plan, join, *middle):
        builder.add_node(node)
    for node in middle:
        builder.add_edge(plan, node)
        builder.add_edge(node, join)
    return GraphFlow(builder.get_participants(), builder.build(), runtime=kit.runtime)


def society(kit: Kit) -> App:
    """An agent whose mind is a team with a manager of its own, beside an ordinary agent."""
    mind = SocietyOfMindAgent(
        "society", selector(kit, turns=1), kit.client, instruction=kit.prompt("society")
    )
    return RoundRobinGroupChat([mind, kit.agent("judge")], max_turns=2, runtime=kit.runtime)


def tools(kit: Kit) -> App:
    """An agent that asks two agents and a team at once, an agent again, then answers itself."""
    boss = kit.agent(
        "boss",
        tools=[
            AskAgent(kit.agent("librarian", slow=0.01)),
            AskAgent(kit.agent("clerk", slow=0.01)),
            AskTeam(selector(kit, turns=1), "team", "Ask."),
        ],
        calls="librarian+clerk+team,clerk",
        max_tool_iterations=3,
    )
    return RoundRobinGroupChat([boss, kit.agent("judge")], max_turns=2, runtime=kit.runtime)


def reflecting(kit: Kit) -> App:
    """An agent that calls a tool, which runs an agent nobody knew of, and reflects on the result."""

    async def look_up() -> str:
        """Look it up."""
        await kit.agent("hidden").run(task="go")
        return "found"

    return kit.agent("thinker", tools=[look_up], calls="look_up", reflect_on_tool_use=True)


def alone(kit: Kit) -> App:
    """One agent without a team."""
    return kit.agent("solo")


def nested_team(kit: Kit) -> App:
    """A team as a member of a team."""
    inner = RoundRobinGroupChat([kit.agent("first"), kit.agent("second")], name="inner", max_turns=2)
    return RoundRobinGroupChat([inner, kit.agent("third")], max_turns=2, runtime=kit.runtime)


def filtered(kit: Kit) -> App:
    """An agent that sees only what a filter lets through."""
    config = MessageFilterConfig(per_source=[PerSourceFilter(source="user")])
    reader = MessageFilterAgent("filter", kit.agent("reader"), config)
    return RoundRobinGroupChat([reader, kit.agent("judge")], max_turns=2, runtime=kit.runtime)


def handmade(kit: Kit) -> App:
    """Agents of the app's own: one answers, one streams, and their classes are made after `attach`."""

    class Answering(Plain):
        async def on_messages(
            self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
        ) -> Response:
            return await self.ask()

    class Streaming(Answering):
        async def on_messages_stream(
            self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
        ) -> AsyncGenerator[Any, None]:
            yield await self.ask()

    return RoundRobinGroupChat(
        [Answering("answering", kit), Streaming("streaming", kit)], max_turns=2, runtime=kit.runtime
    )


class Plain(BaseChatAgent):
    """An agent that asks the model itself."""

    def __init__(self, name: str, kit: Kit) -> None:
        super().__init__(name, "Asks the model itself.")
        self._kit = kit

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def ask(self, name: str | None = None) -> Response:
        prompt = self._kit.prompt(name or self.name)
        await self._kit.client.create([UserMessage(content=prompt, source="user")])
        return Response(chat_message=TextMessage(content="asked", source=self.name))

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        return await self.ask()

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """It keeps nothing."""


_TASK = {"task": "go"}
"""The test server sends tool calls without arguments."""


class AskAgent(AgentTool):
    def run_json_stream(self, args: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
        return super().run_json_stream({**_TASK, **args}, *rest, **more)


class AskTeam(TeamTool):
    def run_json_stream(self, args: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
        return super().run_json_stream({**_TASK, **args}, *rest, **more)


CALLS: dict[Build, dict[str, int]] = {
    round_robin: {"write": 2, "check": 2},
    selector: {MANAGER: 2, "done": 2},
    swarm: {"alice": 1, "bob": 1},
    graph_flow: {"plan": 1, "north": 1, "east": 1, "south": 1, "west": 1, "join": 1},
    society: {"society": 1, MANAGER: 1, "done": 1, "judge": 1},
    tools: {"boss": 3, "librarian": 1, "clerk": 2, MANAGER: 1, "done": 1, "judge": 1},
    reflecting: {"thinker": 2, "hidden": 1},
    alone: {"solo": 1},
    nested_team: {"first": 1, "second": 1, "third": 1},
    filtered: {"reader": 1, "judge": 1},
    handmade: {"answering": 1, "streaming": 1},
}
"""How many calls each app's agents make in one run."""
