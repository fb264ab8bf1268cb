"""`attach`, the one line an AutoGen app adds, and `detach`, which takes all of it back.

AgentChat's agents override the methods that are wrapped, so each class that defines one is wrapped itself:
those that exist at the first `attach`, and later ones when their first agent is made. What is needed to
take the wrappers back is kept on each class, so there is no registry, and nothing keeps a class alive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Lock
from types import ModuleType
from typing import Any, TypeVar

from lightning_autogen.messages import in_senders_rollout, note_sender
from lightning_autogen.steps import FRAMEWORK, in_on_message, in_on_messages, in_on_messages_stream
from lightning_core.errors import ConfigError, InstrumentationError
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.patching import patch

T = TypeVar("T")
Wrap = Callable[[Callable[..., Any], list[str]], Callable[..., Any]]

_UNDO = "_lightning_autogen_undo"
_CHANGING = Lock()
"""Held while classes are wrapped or restored: rollouts in other threads may attach at the same time."""
_ATTACHABLE = (
    ("autogen_agentchat.base", "Team"),
    ("autogen_agentchat.base", "ChatAgent"),
    ("autogen_core", "SingleThreadedAgentRuntime"),
)
_STEPS: dict[str, Wrap] = {"on_messages": in_on_messages, "on_messages_stream": in_on_messages_stream}


def attach(target: T) -> T:
    """Name the calls of AutoGen's agents, from now on and in the whole process; returns the target.

    The target is a team or an agent, or a runtime of the app's own; ConfigError for anything else. One is
    enough, but attaching each does no harm and costs microseconds, before a rollout as well as inside it.
    """
    if not takes(target):
        kind = type(target)
        raise ConfigError(
            "attach() takes a team, an agent or a SingleThreadedAgentRuntime of AutoGen, "
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

    hook = WhenImported("autogen_agentchat.agents", place)
    hook.start()
    return undo


def _is_placed() -> bool:
    return any(_UNDO in vars(owner) for owner in _agent_classes())


def takes(target: Any) -> bool:
    """Whether the target can be attached. Imports nothing: an app that has one has imported its class."""
    return isinstance(target, tuple(_attachable()))


def detach() -> None:
    """Take back what `attach` has changed in AutoGen's classes; if nothing is attached, do nothing."""
    if "autogen_agentchat.agents" not in sys.modules:
        return
    with _CHANGING:
        for owner in {*_fixed(), *_agent_classes()}:
            for take_back in vars(owner).get(_UNDO, ()):
                take_back()
            if _UNDO in vars(owner):
                delattr(owner, _UNDO)


def _attachable() -> Iterator[type]:
    for module, name in _ATTACHABLE:
        if kind := getattr(sys.modules.get(module), name, None):
            yield kind


def _install() -> None:
    fixed = _fixed()
    for owner, wrappers in fixed.items():
        for name in wrappers.keys() - vars(owner).keys():
            raise _no_place(f"{owner.__module__}.{owner.__qualname__}.{name}")
    for owner, wrappers in fixed.items():
        _wrap(owner, wrappers)
    for agent_class in _agent_classes():
        _wrap(agent_class, _STEPS)


def _fixed() -> dict[type, dict[str, Wrap]]:
    """Returns the wraps that do not depend on the app's agents."""
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_core import BaseAgent, SingleThreadedAgentRuntime
    from autogen_core import _single_threaded_agent_runtime as runtime

    return {
        BaseChatAgent: {"__init__": _covering, **_STEPS},
        BaseAgent: {"on_message": in_on_message},
        SingleThreadedAgentRuntime: {
            "_process_send": in_senders_rollout,
            "_process_publish": in_senders_rollout,
        },
        _envelope(runtime, "SendMessageEnvelope"): {"__init__": note_sender},
        _envelope(runtime, "PublishMessageEnvelope"): {"__init__": note_sender},
    }


def _envelope(runtime: Any, name: str) -> type:
    owner = getattr(runtime, name, None)
    if not isinstance(owner, type):
        raise _no_place(f"{runtime.__name__}.{name}")
    return owner


def _covering(original: Callable[..., None], users: list[str]) -> Callable[..., None]:
    """For the `__init__` of every agent: by then all classes it is made of are known."""

    def __init__(agent: Any, *args: Any, **kwargs: Any) -> None:
        if users:
            _cover(type(agent))
        original(agent, *args, **kwargs)

    return __init__


def _cover(agent_class: type) -> None:
    for owner in agent_class.__mro__:
        if _UNDO not in vars(owner) and not vars(owner).keys().isdisjoint(_STEPS):
            with _CHANGING:
                _wrap(owner, _STEPS)


def _agent_classes() -> Iterator[type]:
    """Every class of agents, and what else they inherit the wrapped methods from."""
    from autogen_agentchat.agents import BaseChatAgent

    found: list[type] = [BaseChatAgent]
    for agent_class in found:
        found += agent_class.__subclasses__()
    for owner in dict.fromkeys(base for agent_class in found for base in agent_class.__mro__):
        if not vars(owner).keys().isdisjoint(_STEPS):
            yield owner


def _wrap(owner: type, wrappers: dict[str, Wrap]) -> None:
    """Wrap the methods that `owner` defines itself, once."""
    if _UNDO in vars(owner):
        return
    names = [name for name in wrappers if name in vars(owner)]
    setattr(owner, _UNDO, [patch(owner, name, FRAMEWORK, wrappers[name]) for name in names])


def _no_place(name: str) -> InstrumentationError:
    from importlib.metadata import version

    return InstrumentationError(
        f"autogen-core {version('autogen-core')} has no {name!r}, which tells agents and rollouts apart. "
        "Install autogen-agentchat>=0.7,<0.8, or name the calls yourself: with lightning.agent('name'): ..."
    )
