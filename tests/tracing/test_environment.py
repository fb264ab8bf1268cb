"""A program's address and key: what it asks with them is recorded under its rollout and agent."""

from __future__ import annotations

import asyncio
import os
import sys

import openai
import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope
from tests.gateway.conftest import House, open_house

PROGRAM = """
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "ping"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(json.load(direct.open(request))["choices"][0]["message"]["content"])
"""


def scope(house: House, token: str, agents: tuple[str, ...] | None = None) -> Scope:
    return Scope("r1", 1, house.url, token, agents)


async def say(environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode().strip()


async def ask(environment: dict[str, str]) -> None:
    """The same call by an SDK in this process."""
    base, key = environment["OPENAI_BASE_URL"], environment["OPENAI_API_KEY"]
    async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "ping"}])


@pytest.mark.parametrize("name", ["writer", "two words", "team/writer", "100%", "检查"])
async def test_a_program_s_call_is_recorded_under_its_rollout_and_agent(name: str) -> None:
    async with open_house() as house:
        with rollout_scope(scope(house, await house.rollout())):
            assert await say(lightning.environment(agent=name)) == "ping"
        call = await house.one_call()
    assert (call.rollout_id, call.agent, call.trained) == ("r1", name, True)


async def test_an_agent_that_is_not_trained_is_recorded_as_such() -> None:
    async with open_house(agents=("writer",)) as house:
        with rollout_scope(scope(house, await house.rollout(), ("writer",))):
            await say(lightning.environment(agent="reader"))
        call = await house.one_call()
    assert (call.agent, call.trained) == ("reader", False)


async def test_without_a_name_the_block_around_names_the_agent() -> None:
    async with open_house() as house:
        with rollout_scope(scope(house, await house.rollout())):
            outside = lightning.environment()["OPENAI_BASE_URL"]
            with lightning.agent("planner"):
                await say(lightning.environment())
                inside = lightning.environment()["OPENAI_BASE_URL"]
                given = lightning.environment(agent="writer")["OPENAI_BASE_URL"]
        call = await house.one_call()
    assert call.agent == "planner"
    assert [address.split("/")[-2] for address in (outside, inside, given)] == [
        "unnamed",
        "planner",
        "writer",
    ]


async def test_the_key_opens_no_other_rollout() -> None:
    async with open_house() as house:
        token = await house.rollout("r1")
        await house.rollout("r2")
        with rollout_scope(Scope("r2", 1, house.url, token)):
            environment = lightning.environment(agent="writer")
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await ask(environment)
        assert refused.value.status_code == 403
        assert refused.value.code == "other_rollout"
        assert await house.calls("r2") == []


@pytest.mark.parametrize("agents", [None, ("writer",), ("reader",)])
@pytest.mark.parametrize("rollout", ["r1", "r 1 é"])
async def test_a_client_in_the_rollout_s_own_process_keeps_the_agent_of_its_address(
    rollout: str, agents: tuple[str, ...] | None
) -> None:
    async with open_house(agents=agents) as house:
        here = Scope(rollout, 1, house.url, await house.rollout(rollout), agents)
        with instrument(lambda: None), rollout_scope(here):
            await ask(lightning.environment(agent="writer"))
        call = await house.one_call(rollout)
    assert (call.rollout_id, call.agent) == (rollout, "writer")
    assert call.trained == (agents != ("reader",))
    assert here.noticed() == ([], [])


async def test_a_client_that_was_made_in_an_earlier_rollout_calls_for_the_one_that_runs() -> None:
    async with open_house() as house:
        with rollout_scope(Scope("r1", 1, house.url, await house.rollout("r1"))):
            earlier = lightning.environment(agent="writer")
        with (
            instrument(lambda: None),
            rollout_scope(Scope("r2", 1, house.url, await house.rollout("r2"))),
            lightning.agent("reader"),
        ):
            await ask(earlier)
        call = await house.one_call("r2")
        assert await house.calls("r1") == []
    assert call.agent == "reader"


def test_spans_have_the_address_of_the_calls_and_the_same_key() -> None:
    with rollout_scope(Scope("r 1", 1, "http://gateway/", "to,k=n")):
        given = lightning.environment(agent="team/writer")
    base = "http://gateway/rollouts/r%201/agents/team%2Fwriter"
    assert given == {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": "to,k=n",
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": "to,k=n",
        "LIGHTNING_REWARD_URL": "http://gateway/rollouts/r%201/rewards",
        "OTEL_EXPORTER_OTLP_ENDPOINT": base,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20to%2Ck%3Dn",
    }


def test_outside_a_rollout_there_is_no_address() -> None:
    with pytest.raises(ConfigError, match="outside a rollout"):
        lightning.environment()


def test_an_empty_name_is_refused() -> None:
    with rollout_scope(Scope("r1", 1, "http://gateway", "token")), pytest.raises(ConfigError, match="names"):
        lightning.environment(agent="")
