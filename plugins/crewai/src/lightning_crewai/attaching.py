"""`attach`, the one line a CrewAI app adds, and `detach`, which takes all of it back.

Classes are wrapped, not objects: a crew copies its agents for `kickoff_for_each`, and makes new ones that
no app ever sees, to manage, to plan and to judge. Agents of an app's own class may override what is
wrapped, so each class that defines it is wrapped itself, if it exists by then; inside a crew an agent of
any class is named by its task. What is needed to take the wrappers back is kept on each class or module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Lock
from types import ModuleType
from typing import Any, TypeVar

from lightning_core.errors import ConfigError, InstrumentationError
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.patching import patch
from lightning_crewai.naming import FRAMEWORK
from lightning_crewai.steps import in_agent, in_async_agent, in_async_task, in_task

T = TypeVar("T")
Wrap = Callable[[Callable[..., Any], list[str]], Callable[..., Any]]

_UNDO = "_lightning_crewai_undo"
_CHANGING = Lock()
"""Held while classes are wrapped or restored: rollouts in other threads may attach at the same time."""
_ATTACHABLE = (
    ("crewai.crew", "Crew"),
    ("crewai.flow.flow", "Flow"),
    ("crewai.agents.agent_builder.base_agent", "BaseAgent"),
    ("crewai.lite_agent", "LiteAgent"),
)
_OF_TASKS: dict[str, Wrap] = {
    "execute_sync": in_task,
    "execute_async": in_task,
    "aexecute_sync": in_async_task,
}
_OF_AGENTS: dict[str, Wrap] = {
    "execute_task": in_agent,
    "aexecute_task": in_async_agent,
    "kickoff": in_agent,
    "kickoff_async": in_async_agent,
}


def attach(target: T) -> T:
    """Name the calls of CrewAI's agents, from now on and in the whole process; returns the target.

    The target is a crew, an instance of a class made with `@CrewBase`, a flow or an agent; ConfigError
    for anything else. One is enough, but attaching each does no harm and costs microseconds, before a
    rollout as well as inside it.
    """
    if not takes(target):
        kind = type(target)
        raise ConfigError(
            "attach() takes a crew, a flow or an agent of CrewAI, "
            f"not a {kind.__module__}.{kind.__qualname__}"
        )
    with _CHANGING:
        _install()
    return target


def install() -> Callable[[], None]:
    """Do what `attach` does, once the app has imported the framework; the function returned takes it back,
    unless the app had attached something before."""
    placed: list[ModuleType] = []

    def place(module: ModuleType) -> None:
        with _CHANGING:
            if not _is_placed():
                placed.append(module)
            _install()

    def undo() -> None:
        hook.stop()
        if placed:
            detach()

    hook = WhenImported("crewai", place)
    hook.start()
    return undo


def _is_placed() -> bool:
    return any(_UNDO in vars(owner) for owner in _wrapped())


def takes(target: Any) -> bool:
    """Whether the target can be attached. Imports nothing: an app that has one has imported its class."""
    return isinstance(target, tuple(_attachable())) or _is_crew_base(target)


def detach() -> None:
    """Take back what `attach` has changed in CrewAI's classes; if nothing is attached, do nothing."""
    if "crewai" not in sys.modules:
        return
    with _CHANGING:
        for owner in _wrapped():
            for take_back in vars(owner).get(_UNDO, ()):
                take_back()
            if _UNDO in vars(owner):
                delattr(owner, _UNDO)


def _attachable() -> Iterator[type]:
    for module, name in _ATTACHABLE:
        if kind := getattr(sys.modules.get(module), name, None):
            yield kind


def _is_crew_base(target: Any) -> bool:
    return not isinstance(target, type) and getattr(type(target), "is_crew_class", None) is True


def _install() -> None:
    from crewai import Agent, Task

    needed: dict[type, dict[str, Wrap]] = {Task: _OF_TASKS, Agent: _OF_AGENTS}
    for owner, wraps in needed.items():
        for name in wraps.keys() - vars(owner).keys():
            raise _no_place(f"{owner.__name__}.{name}")
    for owner, wraps in _wrapped().items():
        if _UNDO not in vars(owner):
            names = [name for name in wraps if name in vars(owner)]
            setattr(owner, _UNDO, [patch(owner, name, FRAMEWORK, wraps[name]) for name in names])


def _wrapped() -> dict[type, dict[str, Wrap]]:
    """Returns the wraps of tasks, and of every class of agents that exists by now."""
    from crewai import Task
    from crewai.agents.agent_builder.base_agent import BaseAgent
    from crewai.lite_agent import LiteAgent

    found: list[type] = [*BaseAgent.__subclasses__(), LiteAgent]
    for agent_class in found:
        found += agent_class.__subclasses__()
    return {Task: _OF_TASKS, **dict.fromkeys(found, _OF_AGENTS)}


def _no_place(name: str) -> InstrumentationError:
    from importlib.metadata import version

    return InstrumentationError(
        f"crewai {version('crewai')} has no {name!r}, which tells agents apart. "
        "Install crewai>=1.15.30,<2, or name the calls yourself: with lightning.agent('name'): ..."
    )
