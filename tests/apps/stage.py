"""One app, run once in a rollout: against the real gateway, with a model that follows a script, or any other.

The truth about each call is a text that stands in the prompts of one agent only. So a call is named right
if it was recorded under the agent whose text its prompt holds, and it is lost if a server saw it and the
store did not.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from lightning_core.dialects.lenient import with_numbered_ids
from lightning_core.dialects.upstream import ChatRequest, Upstream
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.forks import describe_difference
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Fork, Rollout, Sampling, Task
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.testing.server import serving
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, read_unseen, rollout_scope
from tests.gateway.scripted import Line, ScriptedEngine

Reply = str | list[tuple[str, dict[str, Any]]]
"""A reply of an agent's model: words, or calls of tools."""


@dataclass(frozen=True, slots=True)
class Role:
    """An agent, as the app's author thinks of it."""

    name: str
    text: str
    """Stands in the system message of each of its calls, or in any if there is none; never in another's."""
    says: Sequence[Reply]
    """One after the other; the last one again if it is asked for more."""


@dataclass(frozen=True, slots=True)
class App:
    """An app whose topology somebody else has thought of."""

    name: str
    roles: tuple[Role, ...]
    run: Callable[[], Any]
    """A coroutine or a function; gives what the app came to, as text."""
    answer: str
    """Stands in that if the app has run to its end."""
    calls: dict[str, int]
    """How many calls each agent makes."""


@dataclass(slots=True)
class Outcome:
    """The findings of a run."""

    recorded: list[Call] = field(default_factory=list)
    noticed: int = 0
    arrived: int = 0
    """Requests to the gateway."""
    refused: list[str] = field(default_factory=list)
    """The gateway's refusals."""
    escaped: int = 0
    """Requests to the endpoint of the app itself."""
    said: str = ""
    error: BaseException | None = None

    @property
    def lost(self) -> int:
        """Calls that a server answered, and that were neither recorded nor noticed."""
        recorded = sum(call.status != "failed" for call in self.recorded)
        return self.arrived + self.escaped - len(self.refused) - recorded - self.noticed

    def wrong(self, roles: Sequence[Role]) -> list[str]:
        """Calls that were recorded under another name than their agent's.

        A framework may write a prompt of its own, as CrewAI does where one is too long: then
        nothing is known of it.
        """
        truth = [(find_role(roles, messages_of(call.request)), call.agent) for call in self.recorded]
        return [f"{agent!r} is {role.name!r}" for role, agent in truth if role and role.name != agent]

    def agents(self) -> Counter[str]:
        return Counter(call.agent for call in self.recorded)


@dataclass
class Script(ScriptedEngine):
    """A model that says what the roles of an app say."""

    roles: tuple[Role, ...] = ()
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.says = self._line

    def _line(self, request: ChatRequest, choice: int) -> Line:
        role = find_role(self.roles, request.messages)
        assert role is not None, f"no role of this app has such a prompt: {request.messages}"
        reply = role.says[min(self.told[role.text], len(role.says) - 1)]
        self.told[role.text] += 1
        if isinstance(reply, str):
            return Line(reply)
        return Line(
            tool_calls=[
                {
                    "id": f"call_{uuid.uuid4().hex}",
                    "type": "function",
                    "function": {"name": name, "arguments": dumps(given)},
                }
                for name, given in reply
            ]
        )


def find_role(roles: Sequence[Role], messages: Sequence[dict[str, Any]]) -> Role | None:
    """Whose prompt this is; None if no agent of the app writes such a prompt."""
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    for part in (system, messages) if system else (messages,):
        text = dumps(part, ensure_ascii=False, default=str)
        for role in roles:
            if role.text in text and (role.text or part is messages):
                return role
    return None


def messages_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a recorded request in any API."""
    given = request.get("messages", request.get("input", []))
    messages = given if isinstance(given, list) else [{"role": "user", "content": given}]
    system = request.get("instructions")
    return [*([{"role": "system", "content": system}] if system else []), *messages]


async def play(
    app: App,
    upstream: Upstream,
    seconds: float = 300.0,
    *,
    store: Store | None = None,
    fork: Fork | None = None,
) -> Outcome:
    """Run the app once in a rollout, with replies of `upstream`. An error of the app is in the outcome.

    `fork`: where it leaves the course of a rollout in `store`.
    """
    outcome, store, tokens = Outcome(), store or MemoryStore(), Tokens(b"0123456789abcdef")
    plugins = load_plugins()
    name, sampling = f"r{uuid.uuid4().hex}", Sampling(fork=fork)
    rollout = Rollout(id=name, run_id="apps", task=Task(input={}), group_id="g", step=0, sampling=sampling)
    await store.enqueue([rollout])
    await store.lease("worker", 1, 600.0)
    gateway = Watched(upstream, store, tokens, agents=None)
    gateway.outcome = outcome
    async with GatewayServer(gateway) as server:
        scope = Scope(name, 1, server.url, tokens.issue(rollout, 1))
        with serving() as own, environment(own.url), instrument(plugins.who), rollout_scope(scope):
            try:
                aio = inspect.iscoroutinefunction(app.run)
                async with asyncio.timeout(seconds):
                    outcome.said = str(await (app.run() if aio else asyncio.to_thread(app.run)))
            except Exception as error:
                outcome.error = error
            outcome.escaped = len(own.seen)
        noticed, events = scope.noticed()
        outcome.noticed = sum(found[1] for event in events if (found := read_unseen(event)))
        await asyncio.sleep(0.05)  # what was abandoned is recorded as cancelled
        outcome.recorded = [*(await store.get_calls([name]))[name], *noticed]
    return outcome


async def play_again(app: App) -> str:
    """Record the app, then run it again with the replies on record up to its last call.

    Returns how the calls differ, or "" if they are the same, byte for byte.
    """
    store, script = MemoryStore(), Script(roles=app.roles)
    first = await play(app, script, store=store)
    if first.error is not None or not first.recorded:
        return f"nothing to record: {first.error!r}"
    last = first.recorded[-1]
    role = find_role(app.roles, messages_of(last.request))
    assert role is not None
    assert last.rollout_id is not None
    engine = Script(roles=app.roles, told=script.told - Counter([role.text]))
    fork = Fork(rollout_id=last.rollout_id, call_id=last.id)
    second = await play(app, engine, store=store, fork=fork)
    if second.refused or second.error is not None:
        return (second.refused or [repr(second.error)])[0]
    if len(engine.requests) != 1:
        return f"{len(engine.requests)} calls were sampled, not the last one alone"
    if (made := seen(second.recorded, last.id)) != (recorded := seen(first.recorded, last.id)):
        return describe_difference(recorded, made)
    return "" if app.answer in second.said else f"it ended with {second.said!r}"


def seen(calls: Sequence[Call], sampled: str) -> dict[str, Any]:
    """The agent, the request and the messages of each call, by id; of the `sampled` one no messages."""
    return {
        call.id: [
            *(call.agent, call.dialect, with_numbered_ids(call.request)),
            [choice.message for choice in call.choices if call.id != sampled],
        ]
        for call in calls
    }


class Watched(Gateway):
    """The gateway, with a look at what comes in and what is refused."""

    outcome: Outcome

    def app(self) -> Starlette:
        app = super().app()
        app.add_middleware(_Watch, outcome=self.outcome)  # type: ignore[arg-type]
        return app


class _Watch:
    def __init__(self, app: ASGIApp, outcome: Outcome) -> None:
        self.app, self.outcome = app, outcome

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] != "http" or connection["method"] != "POST":
            await self.app(connection, receive, send)
            return
        self.outcome.arrived += 1
        refused = False

        async def watch(message: Message) -> None:
            nonlocal refused
            refused = refused or 400 <= message.get("status", 200) < 500
            if refused and message.get("body"):
                self.outcome.refused.append(message["body"].decode())
            await send(message)

        await self.app(connection, receive, watch)


@contextmanager
def environment(own_endpoint: str) -> Iterator[None]:
    """Sets the variables of an app's user: a key, and here an endpoint that is not OpenAI's."""
    before = dict(os.environ)
    os.environ.update(
        OPENAI_API_KEY="none", OPENAI_BASE_URL=f"{own_endpoint}/v1", OPENAI_AGENTS_DISABLE_TRACING="1"
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def prepare(folder: Path) -> None:
    """Sets CrewAI's variables before it is imported: send nothing home, keep files apart."""
    os.environ.update(
        CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", CREWAI_STORAGE_DIR=str(folder)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot set an attribute on 'crewai.rag'", ImportWarning)
        try:
            import crewai  # noqa: F401
        except ImportError:
            return
