"""Six scripts, and the files that each engine's writer makes of them.

`python -m tests.deploy.cases` writes the golden files; what has changed is then to be read in the diff.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from lightning_core.cli.training import call_once, read_launch
from lightning_core.deploy.deployment import Deployment, read_deployment
from lightning_core.deploy.engines import ENGINES, dump
from lightning_core.trainer.trainer import Trainer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = HERE / "golden"
SCRIPTS = HERE / "scripts"
FILES = Path("deploy")
CASES: Mapping[str, tuple[Path, tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "plain": (SCRIPTS / "plain.py", (), (), {}),
    "gpu": (SCRIPTS / "gpu.py", (), ("steps=100",), {"gpu": "L40S:2", "clouds": ["aws", "azure"]}),
    "own-store": (
        SCRIPTS / "own_store.py",
        ("--data", "all boats"),
        ("seed=3",),
        {"secrets": ["OPENAI_API_KEY"], "workers": 6, "clouds": ["aws"], "spot": True, "gpu": "L4"},
    ),
    "redis": (SCRIPTS / "redis.py", (), (), {"workers": 1}),
    "program": (SCRIPTS / "program.py", (), (), {"workers": 3}),
    "sql": (ROOT / "examples/sql/train.py", (), ("steps=4",), {}),
}
"""Script, its own arguments, settings and what the command line says."""


PAIRS = [(case, target) for target in ENGINES for case in CASES if target != "ray" or case == "gpu"]
"""The cases that have files: Ray is for verl alone."""


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """As if the command were given there, with the interpreter's state put back afterwards."""
    before, arguments, paths = Path.cwd(), sys.argv[:], sys.path[:]
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.argv[:], sys.path[:] = arguments, paths


def read(script: Path, *settings: str, arguments: tuple[str, ...] = (), **options: Any) -> Deployment:
    """Returns the command's deployment, read in the repository's folder."""
    found: list[Deployment] = []

    def use(trainer: Trainer, solve: object, **tasks: object) -> None:
        options.setdefault("workers", 2)
        found.append(read_deployment(trainer, script, arguments, settings, **options))

    with in_folder(ROOT):
        call_once(script, arguments, read_launch(settings, {}), use)
    return found[0]


@cache
def read_case(case: str) -> Deployment:
    script, arguments, settings, options = CASES[case]
    return read(script, *settings, arguments=arguments, **options)


def render(case: str, target: str) -> dict[str, str]:
    """File names and texts, without what is copied and the libraries."""
    made = ENGINES[target].make(read_case(case), FILES)
    return {name: dump(document) for name, document in made.items()}


if __name__ == "__main__":
    for case, target in PAIRS:
        for name, text in render(case, target).items():
            (GOLDEN / case).mkdir(parents=True, exist_ok=True)
            (GOLDEN / case / f"{target}-{name}").write_text(text)
