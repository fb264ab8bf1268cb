"""The distribution: found by its entry point, light to load, attached in one call, taken back in one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import autogen_core._single_threaded_agent_runtime as core_runtime
import lightning_autogen
import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import ChatAgent
from autogen_core import BaseAgent, SingleThreadedAgentRuntime
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach, detach
from lightning_autogen.steps import host_name

import lightning_core
from lightning_core.plugins import load_plugins
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import rollout_scope
from plugins.autogen.tests import apps
from plugins.autogen.tests.apps import Kit
from plugins.autogen.tests.playing import expect, scope_at

TOUCHED = (
    *(ChatAgent, BaseChatAgent, AssistantAgent, BaseAgent, SingleThreadedAgentRuntime),
    *(core_runtime.SendMessageEnvelope, core_runtime.PublishMessageEnvelope),
)


@pytest.fixture
def solo(client: OpenAIChatCompletionClient) -> Iterator[AssistantAgent]:
    detach()
    yield Kit("r1", client).agent("solo")
    detach()


async def test_the_cores_attach_is_the_same(gateway: GatewayDouble, solo: AssistantAgent) -> None:
    assert lightning_core.attach(solo) is solo
    with rollout_scope(scope_at(gateway)), lightning_core.agent("around"):
        await solo.run(task="go")
    expect(gateway, {"solo": 1}, rollouts=1)


def test_attach_refuses_what_is_not_autogens() -> None:
    with pytest.raises(lightning_core.LightningError, match=r"a team, an agent .* not a builtins\.object"):
        attach(object())
    with pytest.raises(lightning_core.LightningError, match=r"no plugin takes a builtins\.object.*'autogen'"):
        load_plugins(["autogen"]).attach(object())


def test_detach_takes_back_everything_however_often_it_was_attached(solo: AssistantAgent) -> None:
    before = [dict(vars(owner)) for owner in TOUCHED]
    with ThreadPoolExecutor(8) as pool:
        for attached in pool.map(attach, [solo] * 64):
            assert attached is solo
    assert "_lightning_autogen_undo" in vars(apps.Plain)
    assert [dict(vars(owner)) for owner in TOUCHED] != before
    detach()
    assert [dict(vars(owner)) for owner in TOUCHED] == before
    assert "_lightning_autogen_undo" not in vars(apps.Plain)
    detach()


async def test_attaching_again_after_detaching_names_again(
    gateway: GatewayDouble, solo: AssistantAgent
) -> None:
    for _ in range(2):
        attach(solo)
        with rollout_scope(scope_at(gateway)):
            await solo.run(task="go")
        detach()
    expect(gateway, {"solo": 2}, rollouts=1)


def test_an_autogen_without_the_needed_places_is_refused_by_name_and_left_alone(
    solo: AssistantAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(SingleThreadedAgentRuntime, "_process_publish")
    with pytest.raises(lightning_core.LightningError, match=r"Runtime\._process_publish"):
        attach(solo)
    assert not hasattr(BaseChatAgent.on_messages_stream, "__wrapped__")
    monkeypatch.undo()
    monkeypatch.delattr(core_runtime, "SendMessageEnvelope")
    with pytest.raises(lightning_core.LightningError, match="SendMessageEnvelope"):
        attach(solo)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("writer_24016681-f90e-423f-a652-80a875c5d86f", "writer"),
        ("sql_writer_24016681-f90e-423f-a652-80a875c5d86f", "sql_writer"),
        ("writer_default", "writer_default"),
        ("writer", "writer"),
        ("_24016681-f90e-423f-a652-80a875c5d86f", "_24016681-f90e-423f-a652-80a875c5d86f"),
    ],
)
def test_the_id_of_a_team_is_no_part_of_a_name(kind: str, name: str) -> None:
    assert host_name(kind) == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="attac"):
        lightning_autogen.attac  # type: ignore[attr-defined]  # noqa: B018


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    assert run_example(readme, gateway, ["writer"], question="Is it?", answer="it is done") == 1.0
    assert gateway.agents() == {"writer": 1, "checker": 1}
