"""Which backend a run is trained on, where the script says one thing and the command line another."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.trainer.settings import Settings

S = TypeVar("S", bound=Settings)


def choose(trainer: S, chosen: Mapping[str, Any]) -> S:
    """The trainer with settings of the command line over its own.

    What the script has set up stays where the flag asks for the same: AIR that is on, and a backend object of
    the name that is asked for. A backend of another name takes the object's model over. `ray` is the address
    of a cluster for a backend that can be elsewhere. Raises ConfigError, by name, for one that can't.
    """
    settings = dict(chosen)
    ray = settings.pop("ray", None)
    given, asked = trainer.backend, settings.get("backend")
    if trainer.air and settings.get("air") is True:
        del settings["air"]
    if asked is not None and not isinstance(given, str):
        if getattr(given, "name", None) == asked:
            del settings["backend"]
        elif str(trainer.model) == "tiny":
            settings.setdefault("model", given.model)
    changed = replace(trainer, **settings)
    return changed if ray is None else replace(changed, backend=_on_cluster(changed, ray))


def _on_cluster(trainer: Settings, address: str) -> Any:
    """The trainer's backend, at this address of Ray."""
    backend = trainer.backend
    if isinstance(backend, str):
        part = load_plugins().part("backend", backend)
        if "address" in inspect.signature(part).parameters:
            return part(model=trainer.model, seed=trainer.seed, address=address)
    elif is_dataclass(backend) and "address" in {each.name for each in fields(backend)}:
        return replace(backend, address=address)  # type: ignore[type-var]
    name = backend if isinstance(backend, str) else getattr(backend, "name", type(backend).__name__)
    raise ConfigError(
        f"ray={address!r} is the address of a cluster, and backend {name!r} does not run on one; give "
        "--backend verl with it, or leave --ray away"
    )
