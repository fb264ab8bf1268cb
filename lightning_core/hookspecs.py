"""Every hook a plugin can implement.

A plugin is a module or an object with functions marked `@lightning_core.hookimpl`, named by an entry
point of the group `lightning_core`. The package's own parts are registered through the same hooks.
"""

from __future__ import annotations

from typing import Any, Protocol

import pluggy

from lightning_core.types import Who

PROJECT = "lightning_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """Adds a part under a name; `path` is "package.module:Class", imported when it is first used."""

    def __call__(self, name: str, path: str) -> None: ...


@hookspec
def lightning_who() -> Who | None:
    """Who makes the LLM request being built in this very context? None if it is not yours.

    Called once per request, in the caller's thread and task. Must be fast and must not import a
    framework that the app has not imported. Of several answers the innermost (largest `entered`) wins.
    """


@hookspec(firstresult=True)
def lightning_attach(target: Any) -> Any:
    """Connect an app object of your framework and return it (or its replacement); None if not yours."""


@hookspec
def lightning_register_stores(register: Register) -> None:
    """Add stores: `register(url_scheme, "module:Class")`; the class is called with the URL."""


@hookspec
def lightning_register_backends(register: Register) -> None:
    """Add backends: `register(name, "module:Class")`; the class is called with `model=` and `seed=`."""


@hookspec
def lightning_register_credit(register: Register) -> None:
    """Add credit methods: `register(name, "module:function")`, a function as in `credit/base.py`, or a class
    that is made with its defaults and called like one."""


@hookspec
def lightning_register_algorithms(register: Register) -> None:
    """Add algorithms: `register(name, "module:Class")`, a dataclass as in `algorithms/base.py`."""


@hookspec
def lightning_register_air(register: Register) -> None:
    """Add rules of AIR: `register(name, "module:function")`, a function as in `air/base.py`."""


@hookspec
def lightning_register_executors(register: Register) -> None:
    """Add executors: `register(name, "module:Class")`, a class as in `runner/executor.py` that is made with
    its defaults."""


@hookspec
def lightning_register_alerts(register: Register) -> None:
    """Add rules of alerts: `register(name, "module:function")`, a function as in `alerts/base.py`, or a class
    that is made with its thresholds and called like one."""


@hookspec
def lightning_register_trackers(register: Register) -> None:
    """Add trackers: `register(name, "module:Class")`, a class as in `trackers/base.py` that is made with its
    defaults."""
