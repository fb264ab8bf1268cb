"""Refusing options that are out of range, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.errors import ConfigError


def check_options(algorithm: Any, checks: Mapping[str, bool]) -> None:
    """Raise ConfigError for the first option whose check does not hold."""
    for option, holds in checks.items():
        if not holds:
            kind = type(algorithm).__name__
            raise ConfigError(
                f"{kind} can't use {option}={getattr(algorithm, option)!r}: see its meaning in help({kind})"
            )
