"""The installed plugins: found by entry point, loaded one at a time, asked through hooks.

A plugin that can't be imported or registered is set aside under its name in `Plugins.broken` and
harms no other. `Plugins` is an object that you are given; there is no manager in this module.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any, NamedTuple, get_args
from urllib.parse import unquote, urlsplit

import pluggy

from lightning_core import __version__, builtins, hookspecs
from lightning_core.errors import ConfigError, PluginError
from lightning_core.hookspecs import PROJECT, Kind
from lightning_core.records.types import Who

log = logging.getLogger(__name__)

CORE = "core"


class PluginInfo(NamedTuple):
    """One loaded plugin, as `agentlightning plugins` shows it."""

    name: str
    """Its entry point."""
    version: str
    """Version of the distribution it came with."""
    hooks: tuple[str, ...]
    """The hooks it implements."""


@dataclass(frozen=True, slots=True)
class _Part:
    kind: Kind
    name: str
    target: str
    """"package.module:attr"."""
    plugin: str


_Parts = dict[tuple[Kind, str], list[_Part]]


def load_plugins(only: Iterable[str] | None = None) -> Plugins:
    """The core's own parts and the installed plugins (or those named); see `.broken` for the rest.

    Raises PluginError if `only` names a plugin that is not installed.
    """
    plugins = Plugins()
    plugins.add(CORE, builtins, __version__)
    found = sorted(entry_points(group=PROJECT), key=lambda point: point.name)
    for point in _chosen(found, only):
        plugins.load(point)
    return plugins


def attach(target: Any) -> Any:
    """Connect an app object of any framework with an installed plugin; returns it or its replacement."""
    return load_plugins().attach(target)


def _chosen(found: list[EntryPoint], only: Iterable[str] | None) -> list[EntryPoint]:
    if only is None:
        return found
    names = set(only)
    for name in sorted(names - {point.name for point in found} - {CORE}):
        raise PluginError(
            f"no plugin {name!r} is installed; installed: {_listed(point.name for point in found)}"
        )
    return [point for point in found if point.name in names]


class Plugins:
    """The plugins of one process and the questions they can be asked."""

    def __init__(self) -> None:
        self.broken: dict[str, PluginError] = {}
        """Why a plugin is not in use, by name."""
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._infos: dict[str, PluginInfo] = {}
        self._parts: _Parts = {}
        self._installers: list[tuple[str, Callable[[], Callable[[], None] | None]]] = []
        self._pullers: list[tuple[str, Callable[[], Who | None]]] = []
        self._silenced: set[str] = set()

    def load(self, point: EntryPoint) -> None:
        """Import and add one plugin; on failure it goes to `broken` with a warning."""
        name = point.name
        try:
            self.add(name, _import(point), point.dist.version if point.dist else "")
        except PluginError as error:
            if name in self.broken or name in self._infos:
                name = f"{name} ({point.value})"
            self.broken[name] = error
            log.warning("%s", error)

    def add(self, name: str, plugin: object, release: str = "") -> None:
        """Put a module or an object with hooks to use. Raises PluginError, and then nothing was added."""
        if isinstance(plugin, type):
            raise PluginError(f"plugin {name!r} names the class {plugin!r}; name a module or an instance")
        hooks = self._register(name, plugin)
        try:
            parts = self._collect_parts(name, plugin)
        except Exception as error:  # whatever its hooks do: the plugin is broken, not the app
            self._pluggy.unregister(name=name)
            raise PluginError(f"plugin {name!r} failed to register its parts: {error}") from error
        for part in parts:
            self._parts.setdefault((part.kind, part.name), []).append(part)
        self._pullers += [(name, pull) for pull in self._implementations("lightning_who", plugin)]
        self._installers += [(name, one) for one in self._implementations("lightning_install", plugin)]
        self._infos[name] = PluginInfo(name, release, hooks)

    def who(self) -> Who | None:
        """Who calls from this very context: of the plugins' answers the innermost scope."""
        best: Who | None = None
        for name, pull in self._pullers:
            try:
                answer = pull()
            except Exception as error:  # another framework's internals: one plugin must not stop the app
                self._complain_once(name, error)
                continue
            if answer is not None and (best is None or answer.entered > best.entered):
                best = answer
        return best

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Every framework's calls are named inside the block, without `attach`."""
        with ExitStack() as stack:
            for name, install in self._installers:
                try:
                    undo = install()
                except Exception as error:  # another framework's internals: attach() raises it to the app
                    log.warning("plugin %r can't be installed: %s", name, error)
                    continue
                if undo is not None:
                    stack.callback(undo)
            yield

    def attach(self, target: Any) -> Any:
        """Connect an app object of any framework; returns it or its replacement."""
        attached = self._pluggy.hook.lightning_attach(target=target)
        if attached is None:
            kind = type(target)
            raise PluginError(
                f"no plugin takes a {kind.__module__}.{kind.__qualname__}; installed: "
                f"{_listed(name for name in self._infos if name != CORE)}{self._broken_note()}. "
                "Install the plugin of its framework, such as lightning-langgraph; without one, name its "
                "calls by `with lightning.agent(...)` or OpenTelemetry spans (docs/frameworks.md)."
            )
        return attached

    def part(self, kind: Kind, name: str) -> Any:
        """The class or function registered as `kind` under `name`, imported now."""
        parts = self._parts.get((kind, name), [])
        if not parts:
            known = self.names(kind)
            raise ConfigError(
                f"no {kind} is called {name!r}{_guess(name, known)}; known: {_listed(known)}"
                f"{self._broken_note()}"
            )
        if len(parts) > 1:
            owners = _listed(part.plugin for part in parts)
            raise PluginError(f"{kind} {name!r} is registered by {owners}; uninstall all but one of them")
        return _resolve(parts[0])

    def names(self, kind: Kind) -> Sequence[str]:
        """The registered names of a kind, sorted."""
        if kind not in get_args(Kind):
            raise ConfigError(f"no kind of part is called {kind!r}; {_kinds()}")
        return sorted(name for of_kind, name in self._parts if of_kind == kind)

    def list(self) -> Sequence[PluginInfo]:
        """Returns the loaded plugins, the core's own parts first."""
        return tuple(self._infos.values())

    def _register(self, name: str, plugin: object) -> tuple[str, ...]:
        if name in self._infos:
            raise PluginError(f"a second plugin calls itself {name!r}; rename its entry point")
        try:
            self._pluggy.register(plugin, name=name)
        except (ValueError, pluggy.PluginValidationError) as error:  # registered twice, unknown arguments
            if self._pluggy.has_plugin(name):
                self._pluggy.unregister(name=name)
            raise PluginError(f"plugin {name!r} can't be registered: {error}") from error
        hooks = tuple(sorted(caller.name for caller in self._pluggy.get_hookcallers(plugin) or ()))
        if problem := self._problem(hooks):
            self._pluggy.unregister(name=name)
            raise PluginError(f"plugin {name!r} {problem}")
        return hooks

    def _problem(self, hooks: tuple[str, ...]) -> str | None:
        known = [name for name in vars(hookspecs) if name.startswith("lightning_")]
        if not hooks:
            return f"implements no hook; mark functions with @hookimpl, named as one of {_listed(known)}"
        try:
            self._pluggy.check_pending()
        except pluggy.PluginValidationError:
            wrong = next(name for name in hooks if name not in known)
            return f"implements {wrong!r}, which is no hook{_guess(wrong, known)}; hooks: {_listed(known)}"
        return None

    def _collect_parts(self, name: str, plugin: object) -> Sequence[_Part]:
        found: dict[tuple[Kind, str], _Part] = {}
        for implementation in self._implementations("lightning_register", plugin):
            implementation(_adder(name, found))
        return tuple(found.values())

    def _implementations(self, hook: str, plugin: object) -> Sequence[Callable[..., Any]]:
        impls = getattr(self._pluggy.hook, hook).get_hookimpls()
        return [impl.function for impl in impls if impl.plugin is plugin]

    def _broken_note(self) -> str:
        return f" (not loaded because broken: {_listed(self.broken)})" if self.broken else ""

    def _complain_once(self, name: str, error: Exception) -> None:
        if name not in self._silenced:
            self._silenced.add(name)
            log.warning("plugin %r can't say who is calling (logged once)", name, exc_info=error)


def install_command(plugin: str | None, *, extras: Sequence[str] = ()) -> str:
    """The pip command for extras of the core and the plugin in `plugins/<plugin>`.

    Where the core was installed from a clone, the command installs from there; otherwise from an index.
    """
    clone, name = find_clone(), "agent-lightning-core"
    wanted = [f"[{','.join(extras)}]"] if extras else []
    if clone is not None:
        parts = [f"{clone}{each}" for each in wanted] + ([f"{clone / 'plugins' / plugin}"] if plugin else [])
    else:
        parts = [f"{name}{each}" for each in wanted] or [f"lightning-{plugin}".replace("_", "-")]
    return f"pip install {' '.join(map(_quoted, parts))}"


def find_clone() -> Path | None:
    """The clone that the core was installed from, if it was and is still there."""
    try:
        source = json.loads(distribution("agent-lightning-core").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    at = urlsplit(source.get("url", ""))
    clone = Path(unquote(at.path))
    return clone if at.scheme == "file" and (clone / "plugins").is_dir() else None


def _quoted(part: str) -> str:
    return f'"{part}"' if set(part) & set("[] ") else part


def _import(point: EntryPoint) -> object:
    try:
        plugin: object = point.load()
    except Exception as error:  # whatever its module does at import: the plugin is broken, not the app
        raise PluginError(
            f"plugin {point.name!r} can't be imported from {point.value!r}: {error!r}"
        ) from error
    return plugin


def _adder(plugin: str, found: dict[tuple[Kind, str], _Part]) -> hookspecs.Register:
    def register(kind: Kind, name: str, target: str) -> None:
        if kind not in get_args(Kind):
            raise PluginError(f"{kind!r} is no kind of part{_guess(kind, get_args(Kind))}; {_kinds()}")
        module, _, attr = target.partition(":")
        if not (module and attr):
            raise PluginError(f"{kind} {name!r} needs a target like 'package.module:Class', not {target!r}")
        if (kind, name) in found:
            raise PluginError(f"{kind} {name!r} is registered twice")
        found[kind, name] = _Part(kind, name, target, plugin)

    return register


def _resolve(part: _Part) -> Any:
    module, _, attr = part.target.partition(":")
    try:
        return getattr(importlib.import_module(module), attr)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{part.kind} {part.name!r} of plugin {part.plugin!r} can't be imported "
            f"from {part.target!r}: {error}"
        ) from error


def _guess(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _kinds() -> str:
    return f"kinds: {_listed(get_args(Kind))}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
