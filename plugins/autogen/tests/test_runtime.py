"""A runtime that the app starts itself: each message is handled in the rollout that sent it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from autogen_core import (
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TypeSubscription,
    event,
)
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach

from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.testing.truth import mark, read_marks
from lightning_core.tracing.scope import agent, rollout_scope
from plugins.autogen.tests import apps
from plugins.autogen.tests.apps import Kit
from plugins.autogen.tests.playing import ENTRANCES, ROLLOUTS, Entrance, enter, expect, open_client, scope_at


@asynccontextmanager
async def running() -> AsyncIterator[SingleThreadedAgentRuntime]:
    """A runtime started here and now."""
    runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
    runtime.start()
    yield runtime
    await runtime.stop_when_idle()


async def all_rollouts(
    build: apps.Build,
    gateway: GatewayDouble,
    client: OpenAIChatCompletionClient,
    runtime: SingleThreadedAgentRuntime,
    entrance: Entrance,
) -> None:
    async def one(name: str) -> None:
        with rollout_scope(scope_at(gateway, name)):
            team = attach(build(Kit(name, client, stream=entrance == "run_stream", runtime=runtime)))
            await enter(team, entrance)

    await asyncio.gather(*(one(f"r{index}") for index in range(ROLLOUTS)))


SHAPES = [build for build in apps.CALLS if build not in (apps.alone, apps.reflecting)]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
async def test_a_runtime_started_outside_all_rollouts_serves_them_all_at_once(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, build: apps.Build, entrance: Entrance
) -> None:
    async with running() as runtime:
        await all_rollouts(build, gateway, client, runtime, entrance)
    expect(gateway, apps.CALLS[build])


@pytest.mark.parametrize("build", [apps.round_robin, apps.selector, apps.tools])
async def test_a_runtime_started_in_one_rollout_gives_it_nothing_of_the_others(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient, build: apps.Build
) -> None:
    with rollout_scope(scope_at(gateway, "starter")), agent("starter"):
        async with running() as runtime:
            await all_rollouts(build, gateway, client, runtime, "run")
    expect(gateway, apps.CALLS[build])


async def test_a_team_attached_before_any_rollout_can_be_used_in_many(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient
) -> None:
    async with running() as runtime:
        for team in (attach(apps.round_robin(Kit("none", client, runtime=at))) for at in (runtime, None)):
            for name in ("r1", "r2", "r3"):
                with rollout_scope(scope_at(gateway, name)):
                    await team.run(task=mark(rollout=name))
                await team.reset()
    expect(gateway, apps.CALLS[apps.round_robin], rollouts=6)


@dataclass
class Question:
    rollout: str


class Asker(RoutedAgent):
    """Asks the model when it gets a question, and passes the question on."""

    def __init__(self, client: OpenAIChatCompletionClient, name: str, to: str | None) -> None:
        super().__init__("Asks the model.")
        self._client, self._name, self._to = client, name, to

    @event
    async def handle_question(self, message: Question, ctx: MessageContext) -> None:
        content = mark(rollout=message.rollout, agent=self._name)
        await self._client.create([UserMessage(content=content, source="user")])
        if self._to is not None:
            await self.publish_message(message, DefaultTopicId(self._to, message.rollout))


async def add(
    runtime: SingleThreadedAgentRuntime, name: str, client: OpenAIChatCompletionClient, to: str | None
) -> None:
    await Asker.register(runtime, name, lambda: Asker(client, name, to))
    await runtime.add_subscription(TypeSubscription(name, name))


async def test_agents_of_the_core_are_called_by_their_type(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient
) -> None:
    async with running() as runtime:
        attach(runtime)
        await add(runtime, "writer", client, "checker_r1")
        await add(runtime, "checker_r1", client, None)
        for name in (f"r{index}" for index in range(ROLLOUTS)):
            with rollout_scope(scope_at(gateway, name)), agent("around"):
                await runtime.publish_message(Question(name), DefaultTopicId("writer", name))
                await runtime.stop_when_idle()
            runtime.start()
    expect(gateway, {"writer": 1, "checker_r1": 1})


async def test_a_message_handled_after_its_rollout_is_nobodys(gateway: GatewayDouble) -> None:
    with serving() as hosted:
        async with open_client(base_url=f"{hosted.url}/v1") as client:
            runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
            attach(runtime)
            await add(runtime, "writer", client, None)
            for name in ("r1", "r2"):
                with rollout_scope(scope_at(gateway, name)):
                    await runtime.publish_message(Question(name), DefaultTopicId("writer"))
                    if name == "r2":
                        runtime.start()
                        await runtime.stop_when_idle()
        assert [read_marks(seen.body)["rollout"] for seen in hosted.seen] == ["r1"]
    expect(gateway, {"writer": 1}, rollouts=1)
