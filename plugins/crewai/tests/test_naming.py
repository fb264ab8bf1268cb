"""An agent's name is its role as the user wrote it, whatever has become of it since."""

from __future__ import annotations

import pytest
from crewai import Agent, Crew
from lightning_crewai import attach
from lightning_crewai.naming import agent_name

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import rollout_scope
from plugins.crewai.tests.apps import Kit
from plugins.crewai.tests.playing import expect, scope_at

TOPICS = [{"topic": topic, "template": "{topic}"} for topic in ("bird", "bee", "birch")]


@pytest.fixture
def crew() -> Crew:
    kit = Kit("r1")
    return attach(kit.crew(kit.agent(" {topic} expert\n", "{template} expert")))


def test_a_role_that_is_filled_in_keeps_the_name_that_the_user_wrote(
    gateway: GatewayDouble, crew: Crew
) -> None:
    with rollout_scope(scope_at(gateway)):
        crew.kickoff_for_each(inputs=TOPICS)
        for topic in TOPICS:
            crew.kickoff(inputs=topic)
    assert crew.agents[0].role.strip() == "birch expert"
    expect(gateway, {"{topic} expert": 2 * len(TOPICS)}, rollouts=1)


def test_a_copy_of_what_was_filled_in_already_has_no_other_role(crew: Crew) -> None:
    crew._interpolate_inputs(TOPICS[0])
    [copied] = crew.copy().agents
    assert agent_name(copied) == "bird expert"


async def test_every_way_to_kick_off_many_at_once(gateway: GatewayDouble, crew: Crew) -> None:
    with rollout_scope(scope_at(gateway)):
        await crew.kickoff_for_each_async(inputs=TOPICS)
        await crew.akickoff_for_each(inputs=TOPICS)
    expect(gateway, {"{topic} expert": 2 * len(TOPICS)}, rollouts=1)


def test_spaces_around_a_role_do_not_count_and_those_in_it_do() -> None:
    def named(role: str) -> str:
        return agent_name(Agent(role=role, goal="Help.", backstory="None.", llm=Kit("r1").llm()))

    assert named("\n Senior  writer\t\n") == "Senior  writer"
    assert named("检查/员") == "检查/员"
