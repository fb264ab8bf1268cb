"""Every hook a plugin can implement.

A plugin is a module or an object with functions marked `@lightning_core.hookimpl`, named by an entry
point of the group `lightning_core`. The package's own parts are registered through the same hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import pluggy

from lightning_core.records.types import Who

PROJECT = "lightning_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


Kind = Literal["store", "backend", "credit", "algorithm", "air", "alert", "tracker"]
"""Kinds of parts that a plugin can add by name."""


class Register(Protocol):
    """Adds a part under a name; `target` is "package.module:attribute", imported when it is first used."""

    def __call__(self, kind: Kind, name: str, target: str) -> None: ...


@hookspec
def lightning_who() -> Who | None:
    """Who makes the LLM request being built in this very context? None if it is not yours.

    Called once per request, in the caller's thread and task. Must be fast and must not import a
    framework that the app has not imported. Of several answers the innermost (largest `entered`) wins.
    """


@hookspec
def lightning_install() -> Callable[[], None] | None:
    """Name the calls of your framework from now on, as if the app had attached something.

    Called when a process begins to run rollouts; the function returned takes it back when it no longer does.
    None if there is nothing to take back. If the app has not imported the framework yet, wait for its import
    (`tracing.importing.WhenImported`); don't import it.
    """


@hookspec(firstresult=True)
def lightning_attach(target: Any) -> Any:
    """Connect an app object of your framework and return it (or its replacement); None if not yours."""


@hookspec
def lightning_register(register: Register) -> None:
    """Add parts by name: `register("store", "mydb", "package.module:Class")`.

    | kind | the target, and its contract |
    |---|---|
    | store | a class, called with the URL whose scheme is the name; `stores/base.py` |
    | backend | a class, called with `model=`; `backends/base.py` |
    | credit | a function, or a class made with its defaults and called like one; `credit/base.py` |
    | algorithm | a dataclass with defaults; `algorithms/base.py` |
    | air | a function; `air/base.py` |
    | alert | a function, or a class made with its thresholds and called like one; `alerts/watch.py` |
    | tracker | a class made with its defaults; `trackers/base.py` |
    """
