"""Act on a module when the app imports it, without importing it first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def once_imported(module: str, install: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Call `install` once the app has imported the module. The function returned takes both back.

    For a plugin's `lightning_install`; `install` returns what undoes it.
    """
    undo: list[Callable[[], None]] = []
    hook = WhenImported(module, lambda _: undo.append(install()))
    hook.start()

    def take_back() -> None:
        hook.stop()
        while undo:
            undo.pop()()

    return take_back


class WhenImported(MetaPathFinder):
    """Calls `act(module)` once the module is there: now if it is imported, else right after its import.

    An exception from `act` surfaces at the app's own `import` statement.
    """

    def __init__(self, module: str, act: Callable[[ModuleType], None]) -> None:
        self.module = module
        self.act = act

    def start(self) -> None:
        sys.meta_path.insert(0, self)
        if self.module in sys.modules:  # import_module waits for a thread that is in the midst of it
            self.act(importlib.import_module(self.module))

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = self._find_without_me(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._act_after(spec)
        return spec

    def _find_without_me(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        after_me = finders[finders.index(self) + 1 :] if self in finders else finders
        found = (finder.find_spec(fullname, path, target) for finder in after_me)
        return next((spec for spec in found if spec is not None), None)

    def _act_after(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.act(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
