"""Crews, agents and flows as users write them. Every prompt says which rollout and agent it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from crewai import LLM, Agent, Crew, Process, Task
from crewai.flow.flow import Flow, and_, listen, start
from crewai.tools import BaseTool, tool
from pydantic import BaseModel

from lightning_core.records.types import UNNAMED
from lightning_core.testing.truth import mark

App = Any
Api = Literal["completions", "responses"]
COWORKER = "asked"
"""The test server answers every argument of a tool with this word, so work is delegated to whom it names."""


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that an app of one rollout is built with."""

    rollout: str
    stream: bool = False
    api: Api = "completions"
    litellm: bool = False
    base_url: str | None = None
    models: list[Any] = field(default_factory=list)
    """The one that all its agents share, once it is made."""

    def prompt(self, name: str, **marks: object) -> str:
        return mark(rollout=self.rollout, agent=name, **marks)

    def llm(self) -> Any:
        """A model, which by default names no endpoint."""
        if not self.models:
            # CrewAI never closes its clients. They must keep no connection open.
            headers = {"connection": "close"}
            own: dict[str, Any] = {"default_headers": headers, "api": self.api}
            if self.litellm:
                own = {"extra_headers": headers}
            made = LLM(
                model="gpt-4o",
                api_key="none",
                base_url=self.base_url,
                stream=self.stream,
                is_litellm=self.litellm,
                **own,
            )
            self.models.append(made)
        return self.models[0]

    def agent(self, role: str, name: str | None = None, **more: Any) -> Agent:
        """An agent; `name` is what it should be called if that is not just its role."""
        marks = {key: more.pop(key) for key in ("calls", "slow", "fail", "key") if key in more}
        backstory = self.prompt(name or role, **marks)
        return Agent(role=role, goal="Help.", backstory=backstory, llm=self.llm(), **more)

    def crew(self, *agents: Agent, **more: Any) -> Crew:
        """A crew in which each agent has one task."""
        return Crew(agents=list(agents), tasks=[work(agent) for agent in agents], stream=self.stream, **more)


Build = Callable[[Kit], App]


def work(agent: Agent | None = None, **more: Any) -> Task:
    return Task(description="Do it.", expected_output="A text.", agent=agent, **more)


@tool("look_up")
def look_up() -> str:
    """Look it up."""
    return "found"


@tool("compute")
def compute() -> str:
    """Compute it."""
    return "42"


class Ask(BaseTool):
    """A tool that runs an agent, without a crew or in one."""

    description: str = "Ask."
    build: Callable[[], App]

    def _run(self) -> str:
        app = self.build()
        return str(app.kickoff(**arguments(app)).raw)


def arguments(app: App) -> dict[str, Any]:
    """Returns the arguments of an app's kickoff."""
    return {"messages": "Do it."} if isinstance(app, Agent) else {}


def sequential(kit: Kit) -> App:
    """Two agents, one with two tools at once and then one again. One role is filled in, and ends in a break.

    The truth is filled in too, so that it says in the end what the role was in the beginning.
    """
    tools = [look_up, compute]
    writer = kit.agent("writer", calls="look_up+compute,look_up", tools=tools)
    return kit.crew(kit.agent("{topic} researcher\n", "{template} researcher"), writer)


def hierarchical(kit: Kit) -> App:
    """A manager that delegates a task, and asks a question, to the same coworker."""
    calls = "delegate_work_to_coworker,ask_question_to_coworker"
    return Crew(
        agents=[kit.agent(COWORKER, calls="look_up", tools=[look_up])],
        tasks=[work()],
        manager_agent=kit.agent("boss", calls=calls),
        process=Process.hierarchical,
        stream=kit.stream,
    )


def async_tasks(kit: Kit) -> App:
    """Three tasks at once, then one that waits for them all."""
    agents = [kit.agent(name, slow=0.01) for name in ("north", "east", "south")]
    join = kit.agent("join")
    tasks = [work(agent, async_execution=True) for agent in agents]
    return Crew(agents=[*agents, join], tasks=[*tasks, work(join, context=tasks)], stream=kit.stream)


def parallel_tools(kit: Kit) -> App:
    """An agent that asks an agent twice, a crew and a plain tool at once, and an agent again."""
    tools = [
        Ask(name="ask_clerk", build=lambda: kit.agent("clerk", calls="look_up", tools=[look_up], slow=0.01)),
        Ask(name="ask_crew", build=lambda: _quiet(kit).crew(kit.agent("first"), kit.agent("second"))),
        look_up,
    ]
    return kit.crew(kit.agent("boss", calls="ask_clerk+ask_clerk+ask_crew+look_up,ask_clerk", tools=tools))


def alone(kit: Kit) -> App:
    """One agent without a crew."""
    return kit.agent("solo", calls="look_up", tools=[look_up])


def flow(kit: Kit) -> App:
    """A crew, an agent and a bare model at once, then an agent; before them a bare model."""

    class Branching(Flow[BaseModel]):
        @start()
        def begin(self) -> None:
            self.ask()

        @listen(begin)
        def crew(self) -> None:
            _quiet(kit).crew(kit.agent("writer", slow=0.01)).kickoff()

        @listen(begin)
        async def agent(self) -> None:
            await kit.agent("solo", slow=0.01).kickoff_async("Do it.")

        @listen(begin)
        def model(self) -> None:
            self.ask()

        @listen(and_(crew, agent, model))
        async def end(self) -> None:
            await kit.agent("closer").akickoff("Do it.")
            self.ask()

        def ask(self) -> None:
            kit.llm().call([{"role": "user", "content": kit.prompt(UNNAMED)}])

    return Branching(suppress_flow_events=True)


def _quiet(kit: Kit) -> Kit:
    """For a crew whose answer is wanted at once."""
    return replace(kit, stream=False)


CALLS: dict[Build, dict[str, int]] = {
    sequential: {"{topic} researcher": 1, "writer": 3},
    hierarchical: {"boss": 3, COWORKER: 4},
    async_tasks: {"north": 1, "east": 1, "south": 1, "join": 1},
    parallel_tools: {"boss": 3, "clerk": 6, "first": 1, "second": 1},
    alone: {"solo": 2},
    flow: {"writer": 1, "solo": 1, "closer": 1, UNNAMED: 3},
}
"""How many calls each app's agents make in one run."""
