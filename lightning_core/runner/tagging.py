"""All that is changed in this process while it runs rollouts, and how that reaches the processes it starts.

Requests are tagged (`tracing.openai_sdk`), and each plugin is told (`lightning_install`). A new process
shares no context with us, so what starts one hands the running rollout on:

- a program (`subprocess`, `asyncio.create_subprocess_exec`) gets the variables of `lightning.environment()`
  but the address of rewards, if its agent is trained or it could reach no model without them. One that is
  given an environment without a key, and with less than half of the app's variables, gets nothing.
  `LIGHTNING_ENVIRONMENT=off` switches that off;
- a job of a `ProcessPoolExecutor` or a `multiprocessing.Pool`, and the target of a `multiprocessing.Process`,
  take rollout and agent along, and run tagged;
- a job of a `multiprocessing.pool.ThreadPool` takes its context along, whenever the pool was made.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

from lightning_core.plugins import Plugins, load_plugins
from lightning_core.records.types import UNNAMED, Call, Event, Reward
from lightning_core.tracing.environment import REWARD_URL, rewards_url, variables
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.patching import patch
from lightning_core.tracing.routing import OPENAI, Puller
from lightning_core.tracing.scope import Scope, agent, current_scope, rollout_scope
from lightning_core.tracing.unseen import name_caller

log = logging.getLogger(__name__)

SWITCH: Final = "LIGHTNING_ENVIRONMENT"
"""The variable that says "off"."""
_HERE: Final = "127.0.0.1,localhost"
_JOBS: Final = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
"""Methods of a `multiprocessing.Pool`; `apply` passes `apply_async`."""


@contextmanager
def tagging(plugins: Plugins) -> Iterator[None]:
    """Tag and route what this process, and what it starts, sends while the block runs."""
    for name in ("no_proxy", "NO_PROXY"):  # the gateway is on this machine, whatever proxy leads outside
        if _HERE not in (before := os.environ.get(name, "")):
            os.environ[name] = ",".join(filter(None, [before, _HERE]))
    with ExitStack() as stack:
        stack.enter_context(instrument(plugins.who))
        stack.enter_context(plugins.installed())
        stack.callback(patch(subprocess.Popen, "__init__", plugins.who, _popen))
        for name, act in _PATCHES.items():
            hook = WhenImported(name, functools.partial(_apply, stack, act, plugins.who))
            stack.callback(hook.stop)
            hook.start()
        yield


def _apply(stack: ExitStack, act: _Patching, who: Puller, module: ModuleType) -> None:
    for undo in act(module, who):
        stack.callback(undo)


# programs -----------------------------------------------------------------------------------
def _popen(original: Callable[..., None], users: list[Puller]) -> Callable[..., None]:
    def __init__(process: Any, *args: Any, **kwargs: Any) -> None:
        if users and len(args) < 11:  # the eleventh is `env`
            kwargs["env"] = _environment(kwargs.get("env"), users)
        original(process, *args, **kwargs)

    return __init__


def _uvloop(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    """uvloop starts programs itself."""

    def subprocess(loop: Any, *args: Any, **kwargs: Any) -> Any:
        if users:
            kwargs["env"] = _environment(kwargs.get("env"), users)
        return original(loop, *args, **kwargs)

    return subprocess


def _environment(given: Mapping[str, str] | None, users: list[Puller]) -> Mapping[str, str] | None:
    """A program's environment; the one that was given, if nothing is to be added."""
    scope = current_scope()
    base: Mapping[str, str] = os.environ if given is None else given
    if scope is None or base.get(SWITCH) == "off" or _is_ours(base, scope) or _is_bare(base):
        return given
    name = name_caller(users)
    if not scope.trains(name) and _reaches_a_model(base):
        return given
    added = variables(scope.gateway_url, scope.rollout_id, scope.token, name)
    del added[REWARD_URL]  # a program that gives rewards is told of that by the app
    if any(other.startswith("OTEL_EXPORTER_OTLP") for other in base):  # the app has a collector
        added = {key: value for key, value in added.items() if not key.startswith("OTEL_")}
    return {**base, **added}


def _is_ours(base: Mapping[str, str], scope: Scope) -> bool:
    """Whether the app has asked for `lightning.environment()` itself."""
    return base.get("OPENAI_BASE_URL", "").startswith(scope.gateway_url)


def _is_bare(base: Mapping[str, str]) -> bool:
    """Whether the app gives a program no key and less than half of its variables: for code of a model."""
    has_key = any(name.startswith("OPENAI_") for name in base)
    return not has_key and 2 * sum(name in base for name in os.environ) < len(os.environ)


def _reaches_a_model(base: Mapping[str, str]) -> bool:
    bearer = {"authorization": f"Bearer {base.get('OPENAI_API_KEY', '')}"}
    return "OPENAI_BASE_URL" in base or not OPENAI.names_no_endpoint("api.openai.com", bearer)


# functions in other processes ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Carried:
    """A function that runs in another process as it would in the rollout and agent that it comes from."""

    scope: Scope
    agent: str
    function: Callable[..., Any]
    tells: bool = False
    """Whether the result is to be `Told`, and an error bears as much as `_TOLD`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(tagging(_plugins()))
            scope = stack.enter_context(rollout_scope(self.scope))
            if self.agent != UNNAMED:
                stack.enter_context(agent(self.agent))
            if not self.tells:
                stack.callback(_send_rewards, scope)
                return self.function(*args, **kwargs)
            try:
                return Told.of(scope, self.function(*args, **kwargs))
            except Exception as error:
                setattr(error, _TOLD, Told.of(scope))  # pickled with it
                raise


_TOLD: Final = "_lightning_told"


@dataclass(frozen=True, slots=True)
class Told:
    """A function's return value from another process, with the records noticed there meanwhile."""

    value: Any
    calls: list[Call]
    events: list[Event]
    rewards: list[Reward]

    @classmethod
    def of(cls, scope: Scope, value: Any = None) -> Told:
        """Returns the records noticed in this scope until now."""
        return cls(value, *scope.noticed(), list(scope.rewards))

    def tell(self, scope: Scope) -> None:
        """Hand what was noticed on to the rollout's own process."""
        scope.seen.extend([*self.calls, *self.events])
        scope.rewards.extend(self.rewards)


def _send_rewards(scope: Scope) -> None:
    """Through the gateway, as nothing else leads from here to the rollout's own process."""
    if not scope.rewards:
        return
    import httpx  # 0.1 s, and most rollouts are never here

    fields = {"value": "value", "agent": "agent", "call_id": "call", "reason": "reason"}
    given = [
        {name: value for field, name in fields.items() if (value := getattr(reward, field)) is not None}
        for reward in scope.rewards
    ]
    try:
        with httpx.Client(trust_env=False, headers={"Authorization": f"Bearer {scope.token}"}) as client:
            client.post(rewards_url(scope.gateway_url, scope.rollout_id), json=given).raise_for_status()
    except httpx.HTTPError as error:
        log.warning("%d rewards of rollout %s are lost: %s", len(given), scope.rollout_id, error)


@functools.cache
def _plugins() -> Plugins:
    return load_plugins()


def _carried(scope: Scope, users: list[Puller], function: Callable[..., Any], *, tells: bool) -> Carried:
    bare = replace(scope, seen=[], under_way={}, rewards=[], unseen={}, taken=set())
    return Carried(bare, name_caller(users), function, tells)


_Patching = Callable[[ModuleType, Puller], list[Callable[[], None]]]


def _submit(original: Callable[..., Future[Any]], users: list[Puller]) -> Callable[..., Future[Any]]:
    def submit(pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        scope = current_scope() if users else None
        if scope is None:
            return original(pool, fn, *args, **kwargs)
        carried = _carried(scope, users, fn, tells=True)
        # The pool may fork a worker now, which outlives this job.
        return _unwrapped(Context().run(original, pool, carried, *args, **kwargs), scope)

    return submit


def _unwrapped(told: Future[Any], scope: Scope) -> Future[Any]:
    """Returns the function's return value; gives the rollout the records noticed meanwhile."""
    returned: Future[Any] = Future()

    def end(_: Future[Any]) -> None:
        if told.cancelled():
            returned.cancel()
            returned.set_running_or_notify_cancel()
        elif not returned.set_running_or_notify_cancel():
            return
        elif (error := told.exception()) is not None:
            if (noticed := vars(error).pop(_TOLD, None)) is not None:
                noticed.tell(scope)
            returned.set_exception(error)
        else:
            result: Told = told.result()
            result.tell(scope)
            returned.set_result(result.value)

    returned.add_done_callback(lambda one: told.cancel() if one.cancelled() else None)
    told.add_done_callback(end)
    return returned


def _pools(module: Any, user: Puller) -> list[Callable[[], None]]:
    wrap = functools.partial(_job, module.ThreadPool)
    return [patch(module.Pool, name, user, wrap) for name in _JOBS]


def _job(in_threads: type, original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def submit(pool: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scope = current_scope() if users else None
        if scope is None or isinstance(func, Carried | _InContext):
            return original(pool, func, *args, **kwargs)
        if isinstance(pool, in_threads):
            return original(pool, _InContext(copy_context(), func), *args, **kwargs)
        return original(pool, _carried(scope, users, func, tells=False), *args, **kwargs)

    return submit


@dataclass(frozen=True, slots=True)
class _InContext:
    """A function that runs in a context, in any number of threads at once."""

    context: Context
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.context.copy().run(self.function, *args, **kwargs)


def _start(original: Callable[..., None], users: list[Puller]) -> Callable[..., None]:
    def start(process: Any) -> None:
        scope = current_scope() if users else None
        target = getattr(process, "_target", None)
        # The workers of a pool outlive the rollout that happens to start them.
        library = str(getattr(target, "__module__", "")).startswith(("multiprocessing.", "concurrent."))
        if scope is not None and target is not None and not library:
            process._target = _carried(scope, users, target, tells=False)
        original(process)

    return start


_PATCHES: Final[Mapping[str, _Patching]] = {
    "concurrent.futures.process": lambda of, user: [patch(of.ProcessPoolExecutor, "submit", user, _submit)],
    "multiprocessing.pool": _pools,
    "uvloop": lambda of, user: [
        patch(of.Loop, name, user, _uvloop) for name in ("subprocess_exec", "subprocess_shell")
    ],
    "multiprocessing.process": lambda of, user: [patch(of.BaseProcess, "start", user, _start)],
}
"""Patches by module."""
