"""A plugin for a framework whose methods are wrapped: all of its hooks, `attach` and `detach`, in one object.

    adapter = Adapter("smolagents", "lightning_smolagents.agents", "smolagents.agents:MultiStepAgent")
    attach, detach, working = adapter.attach, adapter.detach, adapter.working
    lightning_who, lightning_install, lightning_attach = adapter.hooks

What is wrapped stands in a module that may import the framework, as it is imported with it and not before:

    WRAPPED = [(MultiStepAgent, "_run_stream", named), (ToolCallingAgent, "execute_tool_call", reported)]
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from lightning_core.hookspecs import hookimpl
from lightning_core.records.types import UNNAMED, Who
from lightning_core.tracing.importing import once_imported
from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import enter_order

T = TypeVar("T")

Wrapping = dict[tuple[type, str], Callable[[], None]]
"""The wraps of one user, by class and method, each with the function that takes it back. A wrapper finds it
in its list of users, and may add to it."""


class Adapter:
    """The plugin of one framework, for the module that its entry point names."""

    def __init__(self, framework: str, wrapped_in: str, *targets: str, imported: str | None = None) -> None:
        """`wrapped_in` is the module with WRAPPED: class, method, and what makes the wrapper (see
        `patching.patch`). `targets` are the classes that `lightning.attach` takes, as "module:Class". After
        the import of `imported` its classes can be wrapped; by default that is the first target's module.
        """
        self.framework = framework
        self._wrapped_in = wrapped_in
        self._targets = [target.split(":") for target in targets]
        self._imported = imported or self._targets[0][0]
        self._at_work: ContextVar[Who | None] = ContextVar(f"lightning_{framework}", default=None)
        self._attached: Callable[[], None] | None = None

    @property
    def hooks(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        """`lightning_who`, `lightning_install` and `lightning_attach`."""
        return self.lightning_who, self.lightning_install, self.lightning_attach

    @hookimpl
    def lightning_who(self) -> Who | None:
        """The agent at work in this context."""
        return self._at_work.get()

    @hookimpl
    def lightning_install(self) -> Callable[[], None]:
        """Every agent of the framework, from its import on."""
        return once_imported(self._imported, self._wrap)

    @hookimpl
    def lightning_attach(self, target: Any) -> Any:
        """An instance of one of the targets: the same object."""
        return self.attach(target) if isinstance(target, self.targets()) else None

    def targets(self) -> tuple[type, ...]:
        """The classes that it takes, as far as the app has imported them."""
        return tuple(
            getattr(sys.modules[module], name) for module, name in self._targets if module in sys.modules
        )

    def attach(self, target: T) -> T:
        """Name the calls of this agent and of all others in the process; returns it. Twice does no harm."""
        if self._attached is None:
            self._attached = self._wrap()
        return target

    def detach(self) -> None:
        """Take back what `attach` has changed in the framework; if nothing is attached, do nothing.

        Spans of OpenTelemetry that the framework makes itself go on to name its agents' calls.
        """
        if self._attached is not None:
            self._attached()
            self._attached = None

    @contextmanager
    def working(self, name: str | None) -> Iterator[None]:
        """Gives the calls made inside to this agent."""
        token = self._at_work.set(Who(name or UNNAMED, enter_order(), self.framework))
        try:
            yield
        finally:
            self._at_work.reset(token)

    def _wrap(self) -> Callable[[], None]:
        wrapping: Wrapping = {}
        for owner, name, wrap in importlib.import_module(self._wrapped_in).WRAPPED:
            wrapping[owner, name] = patch(owner, name, wrapping, wrap)

        def take_back() -> None:
            for undo in wrapping.values():
                undo()

        return take_back
