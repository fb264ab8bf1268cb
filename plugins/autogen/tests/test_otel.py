"""AutoGen's own spans come in beside its calls, and change nothing in who is said to be calling."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach
from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.records.types import UNNAMED, Span
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.autogen.tests import apps
from plugins.autogen.tests.apps import Kit
from plugins.autogen.tests.playing import ENTRANCES, ROLLOUTS, Entrance, expect, play, rollout, scope_at


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The app has set a provider; it can be set only once in a process, and other tests have none."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield
    provider.shutdown()


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("build", apps.CALLS, ids=lambda build: build.__name__)
async def test_every_call_is_named_as_it_is_without_spans(
    gateway: GatewayDouble, build: apps.Build, entrance: Entrance
) -> None:
    await play(build, gateway, entrance, stream=entrance == "run_stream")
    expect(gateway, apps.CALLS[build])


async def test_between_the_items_of_a_stream_no_agent_is_at_work(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient
) -> None:
    solo = attach(apps.alone(Kit("r1", client, stream=True)))
    content = apps.mark(rollout="r1", agent=UNNAMED)
    async with AsyncOpenAI(api_key="none") as bare:
        with rollout_scope(scope_at(gateway)):
            async for _ in solo.run_stream(task="go"):
                await bare.chat.completions.create(
                    model="any", messages=[{"role": "user", "content": content}]
                )
    assert gateway.mistakes() == []
    assert set(gateway.agents()) == {"solo", UNNAMED}


async def test_the_spans_of_a_team_come_in_with_their_own_rollout(
    gateway: GatewayDouble, client: OpenAIChatCompletionClient
) -> None:
    """The boss asks two agents and a team as tools: their spans lie within the tools'."""
    scopes = [scope_at(gateway, f"r{index}") for index in range(ROLLOUTS)]
    await asyncio.gather(*(rollout(apps.tools, scope, client, "run", False) for scope in scopes))
    expect(gateway, apps.CALLS[apps.tools])
    for scope in scopes:
        spans = spans_of(scope)
        assert {span.rollout_id for span in spans} == {scope.rollout_id}
        names = Counter(span.name for span in spans)
        assert names["invoke_agent clerk"] == names["execute_tool clerk"] == 2
        assert names["execute_tool librarian"] == names["execute_tool team"] == 1
        assert names["invoke_agent boss"] >= 1
        for span in spans:
            if span.name.startswith("execute_tool"):
                assert span.agent == "boss"
                assert str(span.attributes["gen_ai.tool.call.id"]).startswith("call_")


def spans_of(scope: Scope) -> list[Span]:
    return [item for item in scope.seen if isinstance(item, Span)]
