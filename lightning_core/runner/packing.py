"""The user's function as bytes, for a process that does not share our memory.

A function that can be imported goes by its name; one of a script, a notebook or a closure goes whole, with
all that it refers to. Some things can't go, such as open clients, locks and connections: the error names it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.runner.executor import Solve

DEEPEST = 4
"""Functions within functions that are searched for what can't be pickled."""


def pack(solve: Solve, executor: str) -> bytes:
    """The function as bytes for `pickle.loads`. Raises ConfigError that names what stands in the way."""
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(solve)
    except Exception as error:
        culprit = _find_culprit(solve, DEEPEST)
        what = "it" if culprit is None else f"its {culprit}"
        raise ConfigError(
            f"executor={executor!r} needs to send {_name(solve)!r} to another process, and {what} can't be "
            f"pickled ({type(error).__name__}: {error}). Make it inside the function, or move the function "
            "and what it uses to a module and import it from there: each process then makes its own"
        ) from error
    return packed


def _find_culprit(owner: object, depth: int) -> str | None:
    """The innermost thing that can't be pickled, and whose it is; None if it can't be told."""
    for where, value in _parts(owner):
        if not _goes(value):
            within = _find_culprit(value, depth - 1) if depth and _is_ours(value, owner) else None
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            return within or f"{where} of {_name(owner)!r}, a {kind},"
    return None


def _is_ours(value: object, owner: object) -> bool:
    """Whether to look inside: at the app's functions and the object of its method, not at a library's."""
    return (
        isinstance(value, functools.partial)
        or inspect.isroutine(value)
        or value is getattr(owner, "__self__", None)
    )


def _parts(owner: object) -> Iterator[tuple[str, Any]]:
    """What a function or an object refers to, with the way to say it."""
    if isinstance(owner, functools.partial):
        yield from ((f"argument {number}", value) for number, value in enumerate(owner.args, 1))
        yield from ((f"argument {name!r}", value) for name, value in owner.keywords.items())
        yield "function", owner.func
    elif inspect.ismethod(owner):
        yield "object", owner.__self__
    elif inspect.isfunction(owner):
        found = inspect.getclosurevars(owner)
        yield from ((f"global {name!r}", value) for name, value in found.globals.items())
        yield from ((f"variable {name!r}", value) for name, value in found.nonlocals.items())
    else:
        yield from ((f"attribute {name!r}", value) for name, value in getattr(owner, "__dict__", {}).items())


def _goes(value: object) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _name(solve: object) -> str:
    return getattr(solve, "__name__", type(solve).__name__)
