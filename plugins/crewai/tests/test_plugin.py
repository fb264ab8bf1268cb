"""The distribution: found by its entry point, light to load, attached and taken back without a trace."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning_crewai
import pytest
from crewai import Agent, Crew, Task, lite_agent
from crewai.flow.flow import Flow
from crewai.project import CrewBase, agent, crew, task
from lightning_crewai import attach, detach

import lightning_core
from lightning_core.plugins import load_plugins
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import rollout_scope
from plugins.crewai.tests import apps
from plugins.crewai.tests.apps import Kit
from plugins.crewai.tests.playing import expect, scope_at

TOUCHED = (Task, Agent, lite_agent.LiteAgent)


@pytest.fixture
def solo() -> Iterator[Agent]:
    detach()
    yield Kit("r1").agent("solo")
    detach()


def test_it_is_found_by_its_entry_point_and_runs_in_lock_step_with_the_core() -> None:
    plugins = load_plugins(["crewai"])
    [info] = [info for info in plugins.list() if info.name == "crewai"]
    assert info.version == lightning_core.__version__
    assert info.hooks == ("lightning_attach", "lightning_install", "lightning_who")


def test_loading_and_asking_it_imports_no_framework() -> None:
    program = (
        "import sys\n"
        "from lightning_core.plugins import load_plugins\n"
        "import lightning_crewai\n"
        "plugins = load_plugins(['crewai'])\n"
        "assert plugins.who() is None\n"
        "try: plugins.attach(object())\n"
        "except Exception as error: assert 'crewai' in str(error), error\n"
        "else: raise AssertionError\n"
        "lightning_crewai.detach()\n"
        "heavy = [name for name in sys.modules if name.partition('.')[0] in"
        " ('crewai', 'crewai_core', 'chromadb', 'openai')]\n"
        "assert heavy == [], heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@CrewBase
class Declared:
    """A crew as CrewAI's project template writes it."""

    @agent
    def writer(self) -> Agent:
        return Agent(role="{topic} writer\n", goal="Help.", backstory="None.", llm=Kit("r1").llm())

    @task
    def write(self) -> Task:
        return apps.work(self.writer())

    @crew
    def crew(self) -> Crew:
        return Crew(agents=self.agents, tasks=self.tasks)


def test_an_instance_of_a_crew_base_can_be_attached_before_its_crew_is_made(
    gateway: GatewayDouble, solo: Agent
) -> None:
    declared = Declared()
    assert lightning_core.attach(declared) is declared
    with rollout_scope(scope_at(gateway)):
        declared.crew().kickoff(inputs={"topic": "bird"})
    assert {request.agent for request in gateway.tagged()} == {"{topic} writer"}


def test_the_cores_attach_takes_a_crew_a_flow_or_an_agent(gateway: GatewayDouble, solo: Agent) -> None:
    for target in (solo, Kit("r1").crew(solo), apps.flow(Kit("r1"))):
        assert isinstance(target, Agent | Crew | Flow)
        assert lightning_core.attach(target) is target
        with rollout_scope(scope_at(gateway)), lightning_core.agent("around"):
            solo.kickoff("Do it.")
        detach()
    expect(gateway, {"solo": 3}, rollouts=1)


def test_without_attaching_nobody_is_named(gateway: GatewayDouble, solo: Agent) -> None:
    with rollout_scope(scope_at(gateway)):
        solo.kickoff("Do it.")
    assert {request.agent for request in gateway.tagged()} == {"unnamed"}


def test_attach_refuses_what_is_not_crewais() -> None:
    for target in (object(), Declared, Crew):
        with pytest.raises(lightning_core.LightningError, match=r"a crew, a flow or an agent of CrewAI, not"):
            attach(target)
        with pytest.raises(lightning_core.LightningError, match=r"no plugin takes .*'crewai'"):
            load_plugins(["crewai"]).attach(target)


def test_detach_takes_back_everything_however_often_it_was_attached(solo: Agent) -> None:
    before = [dict(vars(owner)) for owner in TOUCHED]
    with ThreadPoolExecutor(8) as pool:
        for attached in pool.map(attach, [solo] * 64):
            assert attached is solo
    for owner, was in zip(TOUCHED, before, strict=True):
        assert dict(vars(owner)) != was
    detach()
    assert [dict(vars(owner)) for owner in TOUCHED] == before
    detach()


def test_attaching_again_after_detaching_names_again(gateway: GatewayDouble, solo: Agent) -> None:
    for _ in range(2):
        attach(solo)
        with rollout_scope(scope_at(gateway)):
            solo.kickoff("Do it.")
        detach()
    expect(gateway, {"solo": 2}, rollouts=1)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Task, "execute_sync"), (Agent, "execute_task")],
)
def test_a_crewai_without_a_needed_place_is_refused_by_name_and_left_alone(
    solo: Agent, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(lightning_core.LightningError, match=rf"{owner.__name__}\.{name}"):
        attach(solo)
    assert not hasattr(Task.execute_async, "__wrapped__")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="attac"):
        lightning_crewai.attac  # type: ignore[attr-defined]  # noqa: B018


async def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    example: dict[str, Any] = {}
    exec(block.partition("trainer.fit(")[0], example)  # what follows trains for minutes
    task = lightning_core.Task(input={"question": "Is it?", "answer": "it is done"})
    with rollout_scope(scope_at(gateway)):
        assert await example["solve"](task) == 1.0
    assert tuple(example["trainer"].agents) == ("writer",)
    assert Counter(request.tagged().agent for request in gateway.seen) == {"writer": 1, "checker": 1}
