"""verl's own configuration, with values that are checked against it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, ListConfig, OmegaConf

from lightning_core.errors import ConfigError


def make_config(values: Mapping[str, Any], strategy: str) -> DictConfig:
    """verl's configuration with these values. Raises ConfigError for a key it does not have."""
    engine = "megatron" if strategy == "megatron" else "dp"
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"model_engine={engine}"])
    for key, value in values.items():  # all before the first is set: what is empty now takes anything
        _check_key(config, key)
        _check_value(key, OmegaConf.select(config, key, throw_on_missing=False), value)
    for key, value in values.items():
        try:
            OmegaConf.update(config, key, value, force_add=True)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"verl does not take {key}={value!r}: {error}") from error
    OmegaConf.resolve(config)
    return config


def _check_key(config: DictConfig, key: str) -> None:
    """Raise ConfigError if the key leads past what verl's configuration knows.

    A part that names its class takes that class's fields, also those that its file leaves away; a part that
    is empty in the file takes anything.
    """
    node: Any = config
    for depth, name in enumerate(parts := key.split(".")):
        if not isinstance(node, DictConfig):
            return
        known = sorted({str(known) for known in node} | _fields(node))
        if name not in known and known:
            where = ".".join(parts[:depth]) or "its configuration"
            raise ConfigError(f"verl has no {key!r}: {where} has no {name!r}{_closest(name, known)}")
        node = node.get(name) if name in node else None
        if node is None or isinstance(node, ListConfig):
            return


def _check_value(key: str, default: Any, value: Any) -> None:
    """Raise ConfigError if a number or a switch is to become something else: verl would find out late."""
    number = isinstance(default, int | float) and not isinstance(default, bool)
    fits = (
        value is None
        or (isinstance(value, str) and value.startswith("${"))
        or not isinstance(default, bool | int | float)
        or (isinstance(value, int | float) and isinstance(value, bool) != number)
    )
    if not fits:
        kind = "a number" if number else "true or false"
        raise ConfigError(f"verl does not take {key}={value!r}: it is {kind}, such as {default!r}")


def _fields(node: DictConfig) -> set[str]:
    target = node.get("_target_")
    if target is None:
        return set()
    module, _, name = str(target).rpartition(".")
    return set(getattr(getattr(import_module(module), name), "__dataclass_fields__", ()))


def _closest(name: str, known: list[str]) -> str:
    """ "; did you mean …?", if one of them is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
