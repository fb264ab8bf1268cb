"""Which rollout is running here, and which agent: two context variables.

The runner opens a rollout's scope around the app; everything the app starts from there inherits
it, threads too. `agent("name")` names the calls of a bare client. Both are read at the moment a request is
built, in the caller's own context: attribution by identity, never by time or order.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import wraps
from threading import Thread
from typing import Any, ParamSpec, TypeVar, cast

from lightning_core.errors import ConfigError
from lightning_core.prompts import Pinned
from lightning_core.records.types import Call, Event, Reward, Span, Who, matches
from lightning_core.texts.json_text import whole
from lightning_core.tracing.patching import patch

P = ParamSpec("P")
R = TypeVar("R")
UNSEEN = "unseen call"
"""Name of the span that stands for calls of a model which could not be recorded."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Calls of a model that were noticed and could be neither routed nor recorded."""

    host: str
    library: str
    """The library that sent them."""
    agent: str
    path: str
    line: str = ""
    """Line of the app's own code, if they were made outside every rollout, while this one ran."""

    @property
    def subject(self) -> str:
        """Subject of the alert."""
        return "/".join(filter(None, (self.library, self.host, self.agent, self.line)))

    def said(self) -> str:
        """Message of the alert, with its remedy."""
        where = f"POST {self.path} to {self.host} by {self.library}"
        if self.line:
            return (
                f"calls of a model at {self.line} ({where}) were made outside every rollout, so nothing says "
                "whose they are; hand the rollout on to where the work is done: "
                "contextvars.copy_context().run(work)"
            )
        return (
            f"calls of agent {self.agent!r} ({where}) were not recorded; make them with the SDK of OpenAI or "
            "Anthropic, or with httpx, in one of the APIs that the gateway speaks (docs/frameworks.md)"
        )

    def span(self, scope: Scope, times: list[float]) -> Span:
        """As it is stored: one span of all that are alike."""
        name = "|".join((scope.rollout_id, str(scope.attempt), *map(str, self._parts())))
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return Span(
            id=digest[:16],
            trace_id=digest,
            rollout_id=scope.rollout_id,
            attempt=scope.attempt,
            agent=self.agent,
            name=UNSEEN,
            span_kind="client",
            attributes={**dict(zip(_ATTRIBUTES, self._parts(), strict=True)), _COUNT: len(times)},
            started_at=times[0],
            ended_at=times[-1],
        )

    def _parts(self) -> tuple[str, ...]:
        return self.host, self.library, self.agent, self.path, self.line


_ATTRIBUTES = ("server.address", "lightning.library", "lightning.agent", "url.path", "lightning.line")
_COUNT = "lightning.count"


def read_unseen(event: Event) -> tuple[Unseen, int] | None:
    """The unseen calls that an event stands for, and how many they are; None if it stands for none."""
    if not isinstance(event, Span) or event.name != UNSEEN or _COUNT not in event.attributes:
        return None
    parts = (str(event.attributes.get(name, "")) for name in _ATTRIBUTES)
    count = event.attributes[_COUNT]
    return Unseen(*parts), count if isinstance(count, int) else 1


@dataclass(frozen=True, slots=True)
class Scope:
    """The rollout that requests made inside it belong to."""

    rollout_id: str
    attempt: int
    gateway_url: str
    """Base URL of the gateway, without `/v1`."""
    token: str
    """The API key of this attempt: it opens this rollout and no other."""
    agents: tuple[str, ...] | None = None
    """Names or globs of the agents being trained; None trains all."""
    prompts: Mapping[str, Pinned] = field(default_factory=dict)
    """The prompts that its agents are told, by name."""
    taken: set[str] = field(default_factory=set, compare=False, repr=False)
    """Versions among them that the app has asked for itself."""
    gateway_instance: str = ""
    """Which of the processes that listened at that address, one after the other; "" if that is not asked."""
    seen: list[Call | Event] = field(default_factory=list, compare=False, repr=False)
    """Records of the attempt noticed in this process, beside the gateway's: the runner stores them when the
    attempt ends. Appended to from any thread."""
    under_way: dict[str, Callable[[], Call]] = field(default_factory=dict, compare=False, repr=False)
    """Calls that were seen to begin and not yet to end, by id; each tells how it stands."""
    rewards: list[Reward] = field(default_factory=list, compare=False, repr=False)
    """Rewards that the app gave with `lightning.reward`, stored likewise."""

    unseen: dict[Unseen, list[float]] = field(default_factory=dict, compare=False, repr=False)
    """When calls were noticed that could not be recorded."""

    def notice(self, unseen: Unseen) -> None:
        """Count a call that can't be recorded. From any thread."""
        self.unseen.setdefault(unseen, []).append(time.time())

    def noticed(self) -> tuple[list[Call], list[Event]]:
        """All that was noticed until now, to be stored: of a call its last try, also if it is under way."""
        under_way = [call() for call in list(self.under_way.values())]
        seen = list(self.seen)  # after: a call that ends meanwhile is in both, and never in neither
        calls = {one.id: one for one in seen if isinstance(one, Call)}
        for one in under_way:
            if one.id not in calls or one.started_at > calls[one.id].started_at:
                calls[one.id] = one
        events = [one for one in seen if not isinstance(one, Call)]
        events += [unseen.span(self, list(times)) for unseen, times in list(self.unseen.items())]
        return list(calls.values()), events

    def trains(self, agent: str) -> bool:
        return matches(agent, self.agents)


class _Opened:
    """A scope, and whether its `rollout_scope` block is still running."""

    __slots__ = ("left_behind", "running", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.running = True
        self.left_behind = False


@dataclass(frozen=True, slots=True)
class _Block:
    """An `agent(...)` block that is open."""

    who: Who
    opened_by: Named
    outer: _Block | None


_scope: ContextVar[_Opened | None] = ContextVar("lightning_scope", default=None)
_agent: ContextVar[_Block | None] = ContextVar("lightning_agent", default=None)
_order = itertools.count(1)
_running: set[_Opened] = set()
"""The rollouts of this process: a call that is outside of all of them can be told from one without any."""


def enter_order() -> int:
    """A number that grows with every scope entered in this process."""
    return next(_order)


def current_scope() -> Scope | None:
    """The rollout running in this context, if any.

    None again once its block has ended, also in a thread or task that outlives the block: a late
    call belongs to no rollout: it must not land on a rollout that was already judged.
    """
    opened = _scope.get()
    return opened.scope if opened is not None and opened.running else None


def running() -> list[Scope]:
    """The rollouts that run in this process, in whatever context."""
    return [opened.scope for opened in list(_running)] if _running else []


def leave_behind() -> None:
    """The rollout running in this context ends, and the app's function goes on all the same."""
    opened = _scope.get()
    if opened is not None:
        opened.left_behind = True


def left_behind() -> bool:
    """Whether this context belongs to a function that goes on although its rollout has ended."""
    opened = _scope.get()
    return opened is not None and opened.left_behind


def report(what: Call | Event) -> None:
    """Have something stored with the rollout running in this context; outside of one it is dropped."""
    scope = current_scope()
    if scope is not None:
        scope.seen.append(what)


def current_agent() -> Who | None:
    """The innermost `agent(...)` block of this context, if any."""
    block = _agent.get()
    return None if block is None else block.who


@contextmanager
def rollout_scope(scope: Scope) -> Iterator[Scope]:
    """Everything called inside belongs to that rollout."""
    opened = _Opened(scope)
    token = _scope.set(opened)
    _running.add(opened)
    try:
        yield scope
    finally:
        opened.running = False
        _running.discard(opened)
        _scope.reset(token)


@contextmanager
def rollout_of(context: Context) -> Iterator[None]:
    """Everything called inside belongs to the rollout of `context`, and only while that one runs.

    For frameworks that do the work in another context than the one it was asked for in.
    """
    before = _scope.get()
    _scope.set(context.get(_scope))
    try:
        yield
    finally:
        _scope.set(before)  # no token: what a framework never finished may be closed in another context


class Named(AbstractContextManager[None]):
    """A block, or a function, whose calls have the name of an agent."""

    def __init__(self, name: str) -> None:
        self._name = whole(name)

    def __enter__(self) -> None:
        who = Who(agent=self._name, entered=enter_order(), framework="lightning")
        _agent.set(_Block(who, self, _agent.get()))

    def __exit__(self, *_: object) -> None:
        block = _agent.get()
        if block is not None and block.opened_by is self:  # a generator may be closed in another context
            _agent.set(block.outer)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator, of a function or an async function. Raises ConfigError for a generator, between
        whose items the calls of others would have this name."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"agent({self._name!r}) can't decorate {function.__qualname__}, as it is a generator; name "
                f"its calls inside, each of them: with lightning.agent({self._name!r}): ..."
            )

        @wraps(function)
        async def named_async(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await cast(Callable[..., Any], function)(*args, **kwargs)

        @wraps(function)
        def named(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return cast(Callable[P, R], named_async) if inspect.iscoroutinefunction(function) else named


def agent(name: str) -> Named:
    """Name the LLM calls made inside a block, `with lightning.agent("planner"): ...`, or by a function,
    `@lightning.agent("planner")`. Don't `yield` inside the block: whoever takes the item would have the
    name."""
    return Named(name)


def prompt(name: str, default: str) -> str:
    """The version of the prompt that the running rollout is pinned to; outside of one, and where the run
    declares no prompt of that name, the default.

    Raises ConfigError if the default is another text than the one declared with `Trainer(prompts=...)`.
    """
    scope = current_scope()
    pinned = scope.prompts.get(name) if scope is not None else None
    if pinned is None or scope is None:
        return default
    if pinned.seed.text != default:
        raise ConfigError(
            f"lightning.prompt({name!r}, ...) has another default than prompts={{{name!r}: ...}} declares; "
            "give both the same text"
        )
    scope.taken.add(name)
    return pinned.text


# threads of the app's own -------------------------------------------------------------------
def carry_into_threads() -> Callable[[], None]:
    """Carry rollout and agent into the threads that the app starts itself, until the returned function is
    called. May be nested.

    A new thread begins with an empty context, so calls from an app's own pool would lose their rollout.
    Inside a rollout `ThreadPoolExecutor.submit` and `Thread.start` hand the caller's context on; outside
    one they do what they always did. Pools of `multiprocessing` are seen to in `runner.tagging`. Not reached:
    threads that were waiting for work before the rollout began and take it from the app's own queue; their
    calls are noticed (`unseen`).
    """
    user = object()
    undo = [patch(ThreadPoolExecutor, "submit", user, _submit), patch(Thread, "start", user, _start)]

    def uninstall() -> None:
        for take_back in undo:
            take_back()

    return uninstall


def _submit(original: Callable[..., Future[Any]], users: list[object]) -> Callable[..., Future[Any]]:
    def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not users or current_scope() is None:
            return original(pool, fn, *args, **kwargs)
        # The pool may start a worker now. It outlives this job, so it must start without a rollout.
        return Context().run(original, pool, copy_context().run, fn, *args, **kwargs)

    return submit


def _start(original: Callable[..., None], users: list[object]) -> Callable[..., None]:
    def start(thread: Thread) -> None:
        given = getattr(thread, "_context", None)  # Python 3.14: the app chose a context itself
        if users and current_scope() is not None and given is None:
            _run_in(copy_context(), thread)
        original(thread)

    return start


def _run_in(context: Context, thread: Thread) -> None:
    body = thread.run

    def run() -> None:
        del thread.run  # the instance's, which refers back to the thread
        context.run(body)

    thread.run = run  # type: ignore[method-assign]
