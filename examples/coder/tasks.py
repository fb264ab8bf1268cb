"""Small repositories, each with one function that is wrong and a test that says so."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

FAULTS = [
    ("add", "a + b", "a - b", "{x} + {y}"),
    ("subtract", "a - b", "b - a", "{x} - {y}"),
    ("multiply", "a * b", "a + b", "{x} * {y}"),
    ("larger", "max(a, b)", "min(a, b)", "max({x}, {y})"),
    ("smaller", "min(a, b)", "max(a, b)", "min({x}, {y})"),
    ("rest", "a % b", "a // b", "{x} % {y}"),
]
"""A function's name, what it should return, what it returns, and what its test expects."""
TEST = "test_it.py"


def make_tasks(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """So many repositories: {"files": {name: text}, "test": the test's text, "prompt": the issue}."""
    draw = random.Random(seed)
    return [_task(draw) for _ in range(count)]


def _task(draw: random.Random) -> dict[str, Any]:
    name, _, wrong, expected = draw.choice(FAULTS)
    x, y = draw.sample(range(2, 40), 2)
    module = draw.choice(["numbers_", "maths", "tools", "core"]) + f"{draw.randrange(100)}"
    source = f"def {name}(a, b):\n    return {wrong}\n"
    test = f"from {module} import {name}\n\nassert {name}({x}, {y}) == {expected.format(x=x, y=y)}\n"
    prompt = (
        f"{module}.py holds:\n\n{source}\n{name}({x}, {y}) must be {expected.format(x=x, y=y)}. "
        f"Mend {module}.py with sed."
    )
    return {"files": {f"{module}.py": source}, "test": test, "prompt": prompt}


def write(task: dict[str, Any], folder: Path) -> None:
    """The repository, as the harness finds it."""
    for name, text in {**task["files"], TEST: task["test"]}.items():
        (folder / name).write_text(text)
