"""The house rules that no tool checks: how docstrings begin, and names of classes."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.house import circles, read_imports

ROOT = Path(__file__).parents[1]
FOLDERS = ("lightning_core", "plugins", "benchmarks", "research", "examples", "recipes", "tests")
FRAGMENT = re.compile(r"\s*(Of|By|Those|What|That)\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each string that stands alone: of modules, classes, functions, fields."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield line, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_is_a_fragment(folder: str) -> None:
    """A reader understands a sentence about the thing at once: "Calls without an agent name."."""
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path.read_text())
        if FRAGMENT.match(text)
    ]
    assert fragments == []


def test_no_two_public_classes_of_the_package_share_a_name() -> None:
    """Starters are left out: each is copied alone into a user's folder."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "lightning_core").rglob("*.py")):
        if path.parent.name != "starters":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("folder", ["lightning_core", "benchmarks", "research"])
def test_no_modules_import_one_another_in_a_circle(folder: str) -> None:
    """Imports for types count too."""
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    assert list(circles(read_imports(ROOT, sources, for_types=True))) == []
