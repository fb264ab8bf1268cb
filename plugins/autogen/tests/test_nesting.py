"""Blocks, bare clients, pools and streams in and around agents: the innermost scope names the call."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage
from autogen_core import CancellationToken
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach, detach
from openai import AsyncOpenAI, OpenAI

from lightning_core.records.types import UNNAMED
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import agent, rollout_scope
from plugins.autogen.tests import apps
from plugins.autogen.tests.apps import Kit, Plain
from plugins.autogen.tests.playing import ENTRANCES, ROLLOUTS, Entrance, enter, expect, play, scope_at

Ask = Callable[[str], Awaitable[None]]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """A bare client's call in rollout r1, which truly belongs to the agent named."""
    async with AsyncOpenAI(api_key="none") as bare:

        async def ask(name: str) -> None:
            content = apps.mark(rollout="r1", agent=name)
            await bare.chat.completions.create(model="any", messages=[{"role": "user", "content": content}])

        yield ask


class Custom(Plain):
    """An agent that does what it is given."""

    def __init__(self, name: str, kit: Kit, body: Callable[[Custom], Awaitable[Any]]) -> None:
        super().__init__(name, kit)
        self._body = body

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        await self._body(self)
        return await super().on_messages(messages, cancellation_token)


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_a_block_in_an_agent_wins_and_one_around_the_team_does_not(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, entrance: Entrance
) -> None:
    async def one(kit: Kit) -> None:
        async def body(custom: Custom) -> None:
            await custom.ask()
            with agent("block"):
                await custom.ask("block")
                await apps.selector(kit, turns=1).run(task="go")
                await custom.ask("block")
                with agent("deeper"):
                    await kit.agent("helper").run(task="go")
                    await custom.ask("deeper")
            await custom.ask()

        custom = Custom("custom", kit, body)
        team = attach(apps.RoundRobinGroupChat([custom], max_turns=1))
        with rollout_scope(scope_at(gateway, kit.rollout)), agent("around"):
            await custom.ask("around")
            await enter(team, entrance)
            await custom.ask("around")

    await asyncio.gather(*(one(Kit(f"r{index}", client)) for index in range(ROLLOUTS)))
    inner = {"custom": 3, "block": 2, "deeper": 1, "helper": 1, apps.MANAGER: 1, "done": 1}
    expect(gateway, {**inner, "around": 2})


async def test_calling_on_super_in_a_block_is_still_the_blocks(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient
) -> None:
    class Guarded(apps.AssistantAgent):
        async def on_messages_stream(self, *args: Any) -> Any:
            with agent("guard"):
                items = [item async for item in super().on_messages_stream(*args)]
            for item in items:
                yield item

    guarded = attach(Guarded("guarded", client, system_message=apps.mark(rollout="r1", agent="guard")))
    with rollout_scope(scope_at(gateway)):
        await guarded.run(task="go")
    expect(gateway, {"guard": 1}, rollouts=1)


async def test_what_is_done_between_the_items_of_a_stream_is_not_the_agents(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, ask: Ask
) -> None:
    solo = attach(Kit("r1", client, stream=True).agent("solo"))
    with rollout_scope(scope_at(gateway)):
        async for _ in solo.run_stream(task="go"):
            await ask(UNNAMED)
    seen = gateway.agents()
    assert gateway.mistakes() == []
    assert seen.pop("solo") == 1
    assert seen.pop(UNNAMED) >= 4
    assert not seen


async def test_an_abandoned_stream_and_a_finished_run_leave_no_name_behind(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, ask: Ask
) -> None:
    kit = Kit("r1", client, stream=True)
    with rollout_scope(scope_at(gateway)):
        for app in (kit.agent("solo"), apps.alone(kit)):
            async with aclosing(attach(app).run_stream(task="go")) as stream:
                async for item in stream:
                    if type(item).__name__ == "ModelClientStreamingChunkEvent":
                        break
            await ask(UNNAMED)
        await kit.agent("solo").run(task="go")
        await ask(UNNAMED)
    expect(gateway, {"solo": 3, UNNAMED: 3}, rollouts=1)


async def test_an_error_in_an_agent_leaves_no_name_behind(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, ask: Ask
) -> None:
    async def body(custom: Custom) -> None:
        await ask("custom")
        raise KeyError("mine")

    custom = attach(Custom("custom", Kit("r1", client), body))
    with rollout_scope(scope_at(gateway)):
        for entrance in ENTRANCES:
            with pytest.raises(KeyError, match="mine"):
                await enter(custom, entrance)
        await ask(UNNAMED)
    expect(gateway, {"custom": 2, UNNAMED: 1}, rollouts=1)


async def test_an_agents_own_pool_is_named_after_it(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none") as bare, ThreadPoolExecutor(8) as shared:

        def build(kit: Kit) -> Any:
            def call(_: int) -> None:
                content = kit.prompt("custom")
                bare.chat.completions.create(model="any", messages=[{"role": "user", "content": content}])

            async def body(custom: Custom) -> None:
                list(shared.map(call, range(3)))

            return apps.RoundRobinGroupChat([Custom("custom", kit, body)], max_turns=1)

        await play(build, gateway, "run", "threads")
    expect(gateway, {"custom": 4})


@pytest.mark.parametrize(
    "build", [apps.round_robin, apps.selector, apps.swarm, apps.graph_flow, apps.nested_team]
)
async def test_without_attaching_the_names_in_plain_teams_are_right_too(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, build: apps.Build, ask: Ask
) -> None:
    detach()
    with rollout_scope(scope_at(gateway)):
        await build(Kit("r1", client)).run(task="go")
        await ask(UNNAMED)
    expect(gateway, {**apps.CALLS[build], UNNAMED: 1}, rollouts=1)


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_agents_of_classes_made_before_and_after_attaching_are_named_alone(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, entrance: Entrance
) -> None:
    kit = Kit("r1", client)

    def make() -> list[type[Plain]]:
        class Mixin:
            async def on_messages(self: Any, *args: Any) -> Any:
                await self.ask()
                return await super().on_messages(*args)  # type: ignore[misc]

        class Own(Plain):
            async def on_messages(self, *args: Any) -> Response:
                return await self.ask()

        class Mixed(Mixin, Plain):
            """Gets the method from what is no agent itself."""

        return [Own, Mixed]

    before = make()
    attach(Plain("any", kit))
    with rollout_scope(scope_at(gateway)):
        for agent_class in (*before, *make()):
            await enter(agent_class("own", kit), entrance)
    expect(gateway, {"own": 6}, rollouts=1)


def test_a_wrapped_class_is_not_kept_alive(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient
) -> None:
    attach(Plain("any", Kit("r1", client)))

    def make() -> weakref.ref[type]:
        class Passing(Plain):
            async def on_messages(self, *args: Any) -> Response:
                return await self.ask()

        Passing("passing", Kit("r1", client))
        assert hasattr(Passing.on_messages, "__wrapped__")
        return weakref.ref(Passing)

    passing = make()
    gc.collect()
    assert passing() is None
