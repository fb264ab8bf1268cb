"""Options are refused by name, with what they may be, before anything is made with them.

NaN is in no range: a test for what is wrong, such as `value < 0`, lets it through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

from lightning_core.errors import ConfigError


def check_range(
    name: str,
    value: object,
    *,
    of: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Raise ConfigError unless it is a finite number within these bounds, and a whole one if asked. `of` says
    whose option it is."""
    if isinstance(value, Integral if whole else Real) and not isinstance(value, bool):
        number = float(value)
        if (
            math.isfinite(number)
            and (least is None or number >= least)
            and (above is None or number > above)
            and (most is None or number <= most)
            and (below is None or number < below)
        ):
            return
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    said = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)
    kind = "a whole number" if whole else "a finite number"
    who = f"{of} can't use {name}={value!r}" if of else f"{name}={value!r}"
    raise ConfigError(f"{who}: give {kind} {said}".rstrip())


def check_choice(name: str, value: object, allowed: Sequence[str], *, of: str) -> None:
    """Raise ConfigError unless it is one of these. `of` says whose option it is."""
    if value not in allowed:
        raise ConfigError(f"{of} can't use {name}={value!r}: give one of {', '.join(map(repr, allowed))}")


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], give: str) -> None:
    """Raise ConfigError unless it is of one of these kinds. `give` says in words what to give."""
    if not isinstance(value, kinds):
        raise ConfigError(f"{name}={value!r}: give {give}")
