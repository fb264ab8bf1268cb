"""The user's function as bytes, for a process that does not share our memory.

A function that can be imported goes by its name. One of a script that has `if __name__ == "__main__":` goes
by the script's path, or by its module's name if it was begun with `python -m`: the other process runs it for
its definitions, under a name of multiprocessing's.
Any other goes whole, with all that it refers to. Some things can't go, such as open clients, locks and
connections: the error names them.
"""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import re
import runpy
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.runner.outcome import Solve, name_of

GUARD = re.compile(r"""^if\s+__name__\s*==\s*["']__main__["']""", re.MULTILINE)
SCRIPT = "__mp_main__"
"""The name under which a script runs in another process; multiprocessing's, so that guards know it."""
_loading: ContextVar[bool] = ContextVar("lightning_loading", default=False)
DEEPEST = 4
"""Functions within functions that are searched for what can't be pickled."""


def pack(solve: Solve) -> bytes:
    """The function as bytes for `pickle.loads`. Raises ConfigError that names what stands in the way."""
    import cloudpickle

    if (script := _script_of(solve)) is not None:
        return pickle.dumps(script)
    try:
        packed: bytes = cloudpickle.dumps(solve)
    except Exception as error:
        culprit = _find_culprit(solve, DEEPEST)
        what = "it" if culprit is None else f"its {culprit}"
        raise ConfigError(
            f"workers: {name_of(solve)!r} must be sent to another process, and {what} can't be "
            f"pickled ({type(error).__name__}: {error}). Put the script's call of Trainer.fit under `if "
            '__name__ == "__main__":`, or move the function and what it uses to a module and import it from '
            "there: each process then makes its own"
        ) from error
    return packed


class _OfScript:
    """A function at the top level of the running script, pickled as the way to get it from there."""

    def __init__(self, path: str, module: str | None, name: str) -> None:
        self._path, self._module, self._name = path, module, name

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_script, (self._path, self._module, self._name)


def _script_of(solve: Solve) -> _OfScript | None:
    """Where to find a function of the running script, if that has a guard; None for any other."""
    main, name = sys.modules["__main__"], getattr(solve, "__qualname__", "")
    path = getattr(main, "__file__", None)
    if path is None or not name or getattr(main, name, None) is not solve:
        return None
    with open(path, encoding="utf-8", errors="replace") as script:
        guarded = GUARD.search(script.read())
    return _OfScript(os.path.abspath(path), _module_of(main), name) if guarded else None


def _module_of(main: ModuleType) -> str | None:
    """Returns the module after `-m`, if the script was begun so; its imports may be relative, which need a
    package."""
    name = getattr(main.__spec__, "name", "__main__")
    return None if name == "__main__" else str(name)  # so is a folder called that is run by its path


def _from_script(path: str, module: str | None, name: str) -> Any:
    """Run a script for its definitions; the one under this name."""
    token = _loading.set(True)
    try:
        if module is None:
            defined = runpy.run_path(path, run_name=SCRIPT)
        else:
            defined = runpy.run_module(module, run_name=SCRIPT, alter_sys=True)
    finally:
        _loading.reset(token)
    main = sys.modules["__main__"] = sys.modules[SCRIPT] = ModuleType(SCRIPT)
    vars(main).update(defined)
    return defined[name]


def check_not_loading() -> None:
    """Raise ConfigError in a script that another process runs for its definitions alone."""
    if _loading.get():
        raise ConfigError(
            "a worker process runs this script to get its function, and came to Trainer.fit: put that call, "
            'and whatever else is for the main process alone, under `if __name__ == "__main__":`'
        )


def _find_culprit(owner: object, depth: int) -> str | None:
    """The innermost thing that can't be pickled, and whose it is; None if it can't be told."""
    for where, value in _parts(owner):
        if not _goes(value):
            within = _find_culprit(value, depth - 1) if depth and _is_ours(value, owner) else None
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            return within or f"{where} of {name_of(owner)!r}, a {kind},"
    return None


def _is_ours(value: object, owner: object) -> bool:
    """Whether to look inside: at the app's functions and the object of its method, not at a library's."""
    return (
        isinstance(value, functools.partial)
        or inspect.isroutine(value)
        or value is getattr(owner, "__self__", None)
    )


def _parts(owner: object) -> Iterator[tuple[str, Any]]:
    """Yields the parts that a function or an object refers to, each with its description."""
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
