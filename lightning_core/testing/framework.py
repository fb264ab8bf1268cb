"""The laws' view of an agent framework, and the stage where they are played.

An adapter's tests subclass `Framework`: how an app is built in it and how it is run. They give an
instance as the fixture `framework`. A framework that can't do something declares it in `lacks`, with
the reason, and the laws about it are skipped.

A `Stage` has the framework between two servers, in many rollouts at once: `gateway` is where the calls
of trained agents must arrive, `hosted` an endpoint that the app itself names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, get_args

import pytest
from openai import OpenAI

from lightning_core.errors import ConfigError
from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, rollout_scope

Ability = Literal["async", "stream", "sync", "tools", "tool events", "several agents", "shared apps"]
Tool = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class TeamMember:
    """An agent to build."""

    name: str
    instructions: str
    """Must stand, letter for letter, in the prompt of each of the agent's calls, and of no other agent's."""
    tools: tuple[Tool, ...] = ()
    """Functions that take `question: str`; the name and the docstring are the tool's. Some are `async`, but
    not where the app is run by `run_sync`. The agent calls tools until the model answers in words."""


class Framework:
    """Subclass it, set the class variables, and write the methods that `lacks` does not excuse."""

    plugin: ClassVar[str]
    """The entry point's name in the group `lightning_core`."""
    modules: ClassVar[tuple[str, ...]]
    """The framework's top-level modules: none may be imported by the plugin before the app does so."""
    answer_tool: ClassVar[str | None] = None
    """The framework's own tool by which an agent gives its answer, if it has one. `build` then adds its name
    to the `calls` mark of each member's instructions, as the last step; its runs may be reported or not."""
    lacks: ClassVar[Mapping[Ability, str]] = {}
    """Missing abilities of the framework (or this adapter), each with the reason."""

    def __init_subclass__(cls) -> None:
        for name in ("plugin", "modules"):
            if not hasattr(cls, name):
                raise ConfigError(f"{cls.__name__} has no {name!r}; set it beside the methods")
        if unknown := sorted(cls.lacks.keys() - set(get_args(Ability))):
            known = ", ".join(map(repr, get_args(Ability)))
            raise ConfigError(
                f"{cls.__name__}.lacks names {unknown[0]!r}, which is no ability; known: {known}"
            )

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[Any]:
        """A model of the framework for one event loop, closed with all its connections at the end.

        `client` is for the OpenAI client behind it: `api_key`, and perhaps `base_url`, `timeout` and
        `max_retries`, which keep their defaults if they are not there. May be the client itself, if
        `build` makes the model.
        """
        self._missing("open_model", None)

    def build(self, model: Any, members: Sequence[TeamMember]) -> Any:
        """An app in which each member works once, in this order, with the adapter attached as users do it."""
        self._missing("build", None)

    async def run(self, app: Any, task: str) -> object:
        """Run the app to its end."""
        self._missing("run", "async")

    def stream(self, app: Any, task: str) -> AsyncIterator[object]:
        """Run the app and yield what the framework gives on the way; an async generator."""
        self._missing("stream", "stream")

    def run_sync(self, app: Any, task: str) -> object:
        """Run the app to its end in a thread whose event loop is set and not running."""
        self._missing("run_sync", "sync")

    def _missing(self, method: str, ability: Ability | None) -> NoReturn:
        excuse = f", or declare lacks = {{{ability!r}: 'why'}}" if ability is not None else ""
        raise ConfigError(f"{type(self).__name__} has no {method}(); write it{excuse}")


# the stage --------------------------------------------------------------------------------------
Entrance = Literal["async", "stream", "sync"]
ENTRANCES: tuple[Entrance, ...] = ("async", "stream", "sync")
ROLLOUTS = 16
TASK = "Begin."
KEY = "the-apps-own-key"
_OURS = "x-lightning-"

Cast = Callable[[str], Sequence[TeamMember]]
"""The members of one rollout's app."""
Bare = Callable[[str], None]
"""A call of a client without a framework, which truly belongs to the agent named."""


def member(rollout: str, name: str, *tools: Tool, **marks: object) -> TeamMember:
    """A member whose instructions tell the truth about its calls, and the model what to do."""
    return TeamMember(name, mark(rollout=rollout, agent=name, **marks), tools)


@dataclass
class Stage:
    """A framework whose plugin is loaded, while all requests are tagged."""

    framework: Framework
    gateway: GatewayDouble
    hosted: GatewayDouble
    client: OpenAI
    """Names no endpoint; for calls that the app makes without the framework."""

    def require(self, *abilities: Ability) -> None:
        """Skip the law if the framework lacks one of these."""
        for ability in abilities:
            if ability in self.framework.lacks:
                pytest.skip(f"{self.framework.plugin} lacks {ability!r}: {self.framework.lacks[ability]}")

    def scope(self, rollout: str = "r1", agents: tuple[str, ...] | None = None) -> Scope:
        return Scope(rollout, 1, self.gateway.url, f"token-of-{rollout}", agents)

    @asynccontextmanager
    async def opened(self, cast: Sequence[TeamMember]) -> AsyncIterator[Any]:
        """One app of these members, with a model that names no endpoint."""
        async with self.framework.open_model(api_key="none") as model:
            yield self.framework.build(model, cast)

    async def play(
        self,
        cast: Cast,
        entrance: Entrance,
        rollouts: int = ROLLOUTS,
        *,
        threads: bool = False,
        agents: tuple[str, ...] | None = None,
        after: Callable[[Scope], object] | None = None,
        fails: bool = False,
        **client: Any,
    ) -> list[Scope]:
        """All rollouts at once, each with an app of its own: in one loop, or each in a thread with its own.

        `after` is called in the rollout when its app has ended; an app that `fails` may
        raise, and its client makes no retries.
        """
        place = "threads" if threads or entrance == "sync" else "tasks"
        scopes = [self.scope(f"{entrance}-{place}-{index}", agents) for index in range(rollouts)]
        client = {"api_key": "none", **({"max_retries": 0} if fails else {}), **client}

        async def one(model: Any, scope: Scope) -> None:
            with rollout_scope(scope):
                with suppress(Exception) if fails else nullcontext():
                    await self.enter(self.framework.build(model, cast(scope.rollout_id)), entrance)
                if after is not None:
                    after(scope)

        def one_sync(model: Any, scope: Scope) -> None:
            with rollout_scope(scope):
                with suppress(Exception) if fails else nullcontext():
                    self.framework.run_sync(self.framework.build(model, cast(scope.rollout_id)), TASK)
                if after is not None:
                    after(scope)

        def in_thread(scope: Scope) -> None:
            with self._own_loop(client) as (runner, model):
                if entrance == "sync":
                    one_sync(model, scope)
                else:
                    runner.run(one(model, scope))

        if place == "threads":
            with ThreadPoolExecutor(rollouts) as pool:
                loop = asyncio.get_running_loop()
                await asyncio.gather(*(loop.run_in_executor(pool, in_thread, scope) for scope in scopes))
        else:
            async with self.framework.open_model(**client) as model:
                await asyncio.gather(*(one(model, scope) for scope in scopes))
        return scopes

    async def enter(self, app: Any, entrance: Entrance, task: str = TASK) -> None:
        """Run the app to its end, by an entrance that awaits."""
        if entrance == "async":
            await self.framework.run(app, task)
        else:
            async with aclosing(self.framework.stream(app, task)) as stream:  # type: ignore[type-var]
                async for _ in stream:
                    pass

    def bare(self, rollout: str = "r1") -> Bare:
        """Calls of a client without a framework, in a rollout."""

        def call(name: str) -> None:
            message = {"role": "user", "content": mark(rollout=rollout, agent=name)}
            self.client.chat.completions.create(model="any", messages=[message])  # type: ignore[list-item]

        return call

    def expect(self, per_rollout: dict[str, int], rollouts: int, remedy: str) -> None:
        """Every tag is right, each agent made just so many calls, and each call has an id of its own."""
        self._check_marks()
        wrong = self.gateway.mistakes()
        wanted = Counter({name: count * rollouts for name, count in per_rollout.items()})
        if not wrong and self.gateway.agents() != wanted:
            wrong = [f"calls by agent are {dict(self.gateway.agents())}, not {dict(wanted)}"]
        answered = Counter(request.tagged().call for request in self.gateway.seen if request.status == 200)
        if not wrong and set(answered.values()) != {1}:
            wrong = [f"call ids are shared by several calls: {answered.most_common(3)}"]
        if wrong:
            self.fail("\n  ".join(wrong[:5]) + f"\n({len(wrong)} in all)", remedy)

    def expect_untouched(self, names: set[str], remedy: str) -> None:
        """These agents' calls went to the app's own endpoint, with its key, and bear nothing of ours."""
        arrived = {request.tagged().marks.get("agent") for request in self.hosted.seen}
        if arrived != names:
            self.fail(f"the app's own endpoint got the calls of {arrived}, not of {names}", remedy)
        for request in self.hosted.seen:
            ours = [name for name in request.headers if name.startswith(_OURS)]
            if ours or request.headers.get("authorization") != f"Bearer {KEY}":
                self.fail(f"a call to the app's own endpoint was changed: {dict(request.headers)}", remedy)

    def fail(self, problem: str, remedy: str) -> None:
        pytest.fail(f"{self.framework.plugin}: {problem}\n{remedy}", pytrace=False)

    def _check_marks(self) -> None:
        for request in self.gateway.seen:
            if "agent" not in request.tagged().marks:
                self.fail(
                    f"a prompt does not hold its agent's instructions: {request.body}",
                    "Framework.build must hand on TeamMember.instructions as they are, as system or user "
                    "text.",
                )

    @contextmanager
    def _own_loop(self, client: dict[str, Any]) -> Iterator[tuple[asyncio.Runner, Any]]:
        with asyncio.Runner() as runner:
            asyncio.set_event_loop(runner.get_loop())
            opened = self.framework.open_model(**client)
            model = runner.run(opened.__aenter__())
            try:
                yield runner, model
            finally:
                runner.run(opened.__aexit__(None, None, None))
