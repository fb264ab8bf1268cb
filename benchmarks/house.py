"""Measures the house: `python -m benchmarks.house [CHECKOUT]`, or `make house`.

Counted on the sources, without running them, but for settings and options of the command line:

lines             of `lightning_core/**/*.py`
lines of code     the same without docstrings, imports, blank lines and comments
imported once     modules that exactly one other module of the package imports at run time
circles           groups of modules of one folder that import one another, for types too
store             lines of `lightning_core/stores`
settings          arguments of the public classes that configure a run; of a shared base class once
options           of all verbs of the command `agentlightning`
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

PACKAGE = "lightning_core"
GOALS = {
    "lines": 31_000,
    "imported once": 45,
    "circles": 0,
    "store": 3_300,
    "settings": 110,
    "options": 40,
}
CONFIGURE = (
    *("AIR", "Alerts", "Command", "Critic", "DPO", "FailurePolicy", "GRPO", "Judge", "LocalBackend"),
    *("LoraOptions", "PPO", "Phase", "RLOO", "APO", "GEPA", "Bootstrap", "RayWorkers", "ReinforcePP", "SFT"),
    *("SDPO", "Trainer", "VerlBackend"),
)
"""Public classes whose arguments are settings; one that a checkout does not have is left out."""


def main(root: Path) -> None:
    """Print the table for a checkout."""
    sources = {path: path.read_text() for path in sorted((root / PACKAGE).rglob("*.py"))}
    used = imported_by(read_imports(root, sources))
    once = [name for name, users in used.items() if len(users) == 1]
    rings = list(circles(read_imports(root, sources, for_types=True)))
    figures = {
        "files": len(sources),
        "lines": sum(len(text.splitlines()) for text in sources.values()),
        "lines of code": sum(map(count_code, sources.values())),
        "imported once": len(once),
        "circles": len(rings),
        "store": sum(len(text.splitlines()) for path, text in sources.items() if "stores" in path.parts),
    }
    if root.resolve() == Path(__file__).parents[1]:
        figures |= {"settings": count_settings(), "options": count_options()}
    table = Table("", "now", "goal", title=str(root))
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,}", f"{GOALS[name]:,}" if name in GOALS else "")
    Console().print(table)
    for ring in rings:
        Console().print("circle:", ", ".join(sorted(ring)), soft_wrap=True)


def count_code(text: str) -> int:
    """Lines that are neither docstring, import, comment nor blank."""
    left = {
        place
        for place, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            left -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(left)


def read_imports(root: Path, sources: Mapping[Path, str], *, for_types: bool = False) -> dict[str, set[str]]:
    """For each module those of the package that it imports, inside functions too; and `for_types` only."""
    texts = {_module(root, path): text for path, text in sources.items()}
    return {name: set(_imported(name, text, set(texts), for_types)) for name, text in texts.items()}


def _module(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imported(name: str, text: str, names: set[str], for_types: bool) -> Iterator[str]:
    tree = ast.parse(text)
    left_out = {
        inner
        for node in ast.walk(tree)
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found = whole if whole in names else node.module
                if found in names and found != name:
                    yield found
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)


def imported_by(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """For each module those that import it."""
    return {name: {user for user, used in imports.items() if name in used} for name in imports}


def circles(imports: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Groups of modules of one folder each of which leads back to itself."""
    folders: dict[str, set[str]] = {}
    for name in imports:
        folders.setdefault(name.rpartition(".")[0], set()).add(name)
    for folder, names in folders.items():
        inside = {name: imports[name] & names - {folder} for name in names}
        left = set(names)
        while left:
            start = left.pop()
            ring = {name for name in _reached(start, inside) if start in _reached(name, inside)}
            left -= ring
            if ring:
                yield ring


def _reached(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += arrows[name]
    return found


def count_settings() -> int:
    """Arguments that a user of the public classes meets; one that several share counts once."""
    import lightning_core

    found = set()
    for name in CONFIGURE:
        part = getattr(lightning_core, name, None)
        if part is not None:
            found |= {(_owner(part, each), each) for each in inspect.signature(part).parameters}
    return len(found)


def _owner(part: type, argument: str) -> str:
    """The outermost class of the package that declares the argument."""
    for base in reversed(part.__mro__):
        if base.__module__.startswith(PACKAGE) and argument in getattr(base, "__annotations__", {}):
            return base.__qualname__
    return part.__qualname__


def count_options() -> int:
    """Options of every verb, without `--help`."""
    from lightning_core.cli.app import VERBS, app

    return sum(
        parameter.param_type_name == "option" and parameter.name != "help"
        for verb in (typer.main.get_command(app), *(verb.load() for verb in VERBS))
        for command in _commands(verb)
        for parameter in command.params
    )


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _commands(inner)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
