"""Changes of the command line to a script that calls `Trainer(...).fit(...)` itself.

The script makes its trainer and calls `fit` at a place of its own, with no parameter for what stands on the
command line. So the command puts one frozen `Launch` into a context variable, and `fit` looks there once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from lightning_core.errors import ConfigError
from lightning_core.hookspecs import Kind
from lightning_core.plugins import load_plugins
from lightning_core.trainer.settings import MODELS, Settings, check_names

S = TypeVar("S", bound=Settings)
_launch: ContextVar[Launch | None] = ContextVar("lightning_launch", default=None)


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings in place of the script's own, and what is called in place of `fit`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the trainer, by name."""
    backend: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the backend, by name."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the algorithm, by name."""
    call: Callable[..., Any] | None = None
    """Called with the trainer and the arguments of `fit`; None: `fit`."""

    def apply(self, trainer: S) -> S:
        """The trainer with these settings over its own.

        What the script has set up stays where the same is asked for: AIR that is on, and a backend object of
        that name. A backend of another name takes the object's model over, and a model goes to the backend
        object, which has it. Raises ConfigError for a setting that there is not.
        """
        settings, parts = dict(self.settings), dict(self.backend)
        check_names(settings, [each.name for each in fields(trainer)])
        given, asked = trainer.backend, settings.get("backend")
        if trainer.air and settings.get("air") is True:
            del settings["air"]
        if asked is not None and not isinstance(given, str):
            if getattr(given, "name", None) == asked:
                del settings["backend"]
            elif trainer.model is None:
                settings.setdefault("model", given.model)
        to_object = not isinstance(given, str) and "backend" not in settings
        if to_object and "model" not in parts and settings.get("model") is not None:
            parts["model"] = settings.pop("model")
        plain = {name: value for name, value in settings.items() if name != "algorithm"}
        changed = replace(trainer, **{**settings, **_nested(type(trainer), plain)})
        if self.algorithm:
            changed = replace(changed, algorithm=_with("algorithm", changed.algorithm, self.algorithm))
        if parts:
            if "model" in parts:  # in place of the script's own
                changed = replace(changed, model=settings.get("model"))
            made = _with("backend", changed.backend, parts, lambda: {"model": _model(changed, parts)})
            changed = replace(changed, backend=made)
        return changed


def _model(settings: Settings, parts: Mapping[str, Any]) -> Any:
    """The model of a backend that is made with these settings. Raises ConfigError if none is named."""
    model = parts.get("model") or settings.served_model
    if model is None:
        raise ConfigError(f"backend.{next(iter(parts))}=... needs a model: {MODELS}")
    return model


def _with(
    kind: Kind,
    part: Any,
    given: Mapping[str, Any],
    needed: Callable[[], Mapping[str, Any]] = dict[str, Any],
) -> Any:
    """A part of the trainer with settings over its own; one that is named is made, with what it needs."""
    make: Callable[..., Any] | None = None
    if isinstance(part, list | tuple):
        raise ConfigError(f"{kind}=[...] has phases with settings of their own: change them in the script")
    if isinstance(part, str):
        make = load_plugins().part(kind, part)
        known = set(inspect.signature(make).parameters)
    else:
        known = {each.name for each in fields(part) if each.init} if is_dataclass(part) else set()
    if unknown := given.keys() - known:
        name = part if isinstance(part, str) else getattr(part, "name", type(part).__name__)
        has = f"; it has {', '.join(sorted(known))}" if known else ""
        raise ConfigError(f"{kind} {name!r} has no setting {', '.join(map(repr, sorted(unknown)))}{has}")
    if make is None:
        return _make(kind, partial(replace, part), _nested(type(part), given))
    return _make(kind, make, {**needed(), **_nested(make, given)})


def _nested(of: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a class; where it takes a dataclass of its own, or a mapping to such, a dict becomes
    that."""
    dicts = {name: value for name, value in given.items() if isinstance(value, dict)}
    hints = get_type_hints(of) if dicts else {}
    return {**given, **{name: _typed(name, hints.get(name), value) for name, value in dicts.items()}}


def _typed(name: str, hint: Any, value: dict[str, Any]) -> Any:
    """A setting's dict as what its type says."""
    for kind in filter(is_dataclass, (hint, *get_args(hint))):
        make = cast("Callable[..., Any]", kind)
        return _make(name, make, _nested(make, value))
    if get_origin(hint) is not Mapping:
        return value
    inner = get_args(hint)[1]
    return {
        key: _typed(f"{name}[{key!r}]", inner, each) if isinstance(each, dict) else each
        for key, each in value.items()
    }


def _make(name: str, make: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Raises ConfigError for settings that it does not take."""
    try:
        return make(**given)
    except TypeError as problem:
        raise ConfigError(f"{name}={dict(given)!r} can't be used: {problem}") from problem


@contextmanager
def launching(launch: Launch | None) -> Iterator[None]:
    """Every trainer that fits inside is launched so; None: as its script says."""
    token = _launch.set(launch)
    try:
        yield
    finally:
        _launch.reset(token)


def current_launch() -> Launch | None:
    """How the command line launched this script; None without it."""
    return _launch.get()
