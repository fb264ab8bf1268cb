"""The template, copied under another name and installed, as an adapter's author would have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "plugins" / "_template"
NAME = "orchestra"


def copy_template(folder: Path) -> Path:
    """All of the template in a new folder, with NAME for `myframework`, in the files and in their names."""
    copy = folder / f"lightning-{NAME}"
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in sorted(copy.rglob("*"), reverse=True):  # what lies deeper is renamed first
        if path.is_file():
            path.write_text(path.read_text().replace("myframework", NAME).replace("MyFramework", "Orchestra"))
        path.rename(path.with_name(path.name.replace("myframework", NAME)))
    return copy


def install(distribution: Path, site: Path) -> None:
    """Install it from its folder into another, without a network."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    done = subprocess.run([*pip, *options, str(distribution)], capture_output=True, text=True, env=_env())
    assert done.returncode == 0, done.stderr


def run_suite(tests: Path, site: Path, only: str = "") -> tuple[dict[str, set[str]], str]:
    """Run a package's tests with what is installed in `site`: names of tests by outcome, and the report."""
    options = ["-p", "no:cacheprovider", "-rA", "--tb=short", "-k", only]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True,
        text=True,
        cwd=tests,
        env=_env(site),
    )
    outcomes: dict[str, set[str]] = defaultdict(set)
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "FAILED", "ERROR", "SKIPPED"):
            outcomes[word].add(rest.partition("::")[2].partition(" ")[0].partition("[")[0])
    return outcomes, done.stdout + done.stderr


def _env(*first: Path) -> dict[str, str]:
    """The environment of a process that finds what this one does, and `first` before that."""
    path = os.pathsep.join([*map(str, first), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path}
