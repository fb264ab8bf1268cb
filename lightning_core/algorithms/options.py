"""Refusing options by name: those out of range, and those that would do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range

if TYPE_CHECKING:
    from lightning_core.algorithms.base import Algorithm
    from lightning_core.credit.base import Credit

LEAST: Mapping[str, int] = MappingProxyType(
    {
        "group_size": 1,
        "tasks_per_step": 1,
        "batch_size": 1,
        "epochs": 1,
        "staleness": 0,
        "replay": 0,
        "refill": 0,
    }
)
"""What the options of every algorithm are at least."""


def check_options(options: Any, **checks: bool) -> None:
    """Raise ConfigError for the first option that is no number or below its least, or whose own check does
    not hold."""
    kind = type(options).__name__
    for option in fields(options):
        if option.name in LEAST:
            least = LEAST[option.name]
            check_range(option.name, getattr(options, option.name), of=kind, least=least, whole=True)
    for name, holds in checks.items():
        if not holds:
            raise ConfigError(
                f"{kind} can't use {name}={getattr(options, name)!r}: see its meaning in help({kind})"
            )


def is_changed(options: Any, option: str) -> bool:
    """Whether an option is another than its default; of what has no defaults, False."""
    defaults = {each.name: each.default for each in fields(options)} if is_dataclass(options) else {}
    return option in defaults and getattr(options, option) != defaults[option]


def check_credit(algorithm: Algorithm, credit: Credit) -> None:
    """Raise ConfigError if an algorithm and a credit method do not go together, each by its attributes:

    - `needs_critic`: it reads a critic's values, and has no use for a baseline;
    - `needs_group`: it compares the rollouts of a group by itself, and has no use for a baseline;
    - `needs_baseline`: it adds comparisons up, each of which must have its baseline taken off.
    """
    check_critic_use(algorithm, credit)
    named = f"credit={algorithm.credit!r}"
    in_groups = bool(getattr(credit, "needs_group", False))
    if in_groups and algorithm.group_size < 2 and algorithm.teaching is None:
        raise ConfigError(
            f"{named} compares rollouts, and {algorithm.name!r} has groups of one; give group_size=2 or "
            "more, or another credit method"
        )
    if (in_groups or getattr(credit, "needs_critic", False)) and is_changed(algorithm, "baseline"):
        raise ConfigError(
            f"{named} has a baseline of its own, so baseline={algorithm.baseline!r} would do nothing; "
            "leave it away, or give another credit method, such as 'uniform'"
        )
    if getattr(credit, "needs_baseline", False) and algorithm.baseline == "none":
        raise ConfigError(
            f"{named} adds several comparisons up, and with baseline='none' a return would count in each; "
            "use baseline='mean' or 'leave_one_out', or another credit method"
        )


def check_critic_use(algorithm: Algorithm, credit: Credit) -> None:
    """Raise ConfigError if a credit method that reads a critic's values gets none, if nobody reads them, or
    if they would be learnt of old rollouts."""
    needed = bool(getattr(credit, "needs_critic", False))
    if needed and algorithm.critic is None:
        raise ConfigError(
            f"credit={algorithm.credit!r} reads a critic's values, and {algorithm.name!r} has no critic; "
            "use PPO, or another credit method"
        )
    if algorithm.critic is not None and not needed:
        raise ConfigError(
            f"{algorithm.name!r} has a critic, and credit={algorithm.credit!r} does not read its values; "
            'use credit="gae", or an algorithm without a critic, such as GRPO'
        )
    if algorithm.critic is not None and algorithm.replay:
        raise ConfigError(
            f"{algorithm.name!r} has a critic and replay={algorithm.replay!r}: it would be fitted again to "
            "what rollouts of an older policy came to; leave replay away, or use epochs"
        )
