"""What the laws must know of an agent framework: how an app is built in it and how it is run.

An adapter's tests subclass `Framework` and give an instance as the fixture `framework`. A framework that
can't do something declares it in `lacks`, with the reason, and the laws about it are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, get_args

from lightning_core.errors import ConfigError

Ability = Literal["async", "stream", "sync", "tools", "tool events", "several agents", "shared apps"]
Tool = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Member:
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
    lacks: ClassVar[Mapping[Ability, str]] = {}
    """What the framework (or this adapter) can't do, each with the reason."""

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

    def build(self, model: Any, members: Sequence[Member]) -> Any:
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
