"""`agentlightning train`: run the user's own script with some of its trainer's settings replaced."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from lightning_core.errors import ConfigError, TrainingStopped
from lightning_core.trainer.joining import Joining
from lightning_core.trainer.trainer import overrides


def train_script(
    script: Path, arguments: Sequence[str], settings: Mapping[str, Any], *, resume: bool
) -> None:
    """Run `script` as its own main program; every trainer it makes takes `settings` over its own."""
    with overrides({**settings, "resume": resume or None}):
        try:
            run_script(script, arguments)
        except TrainingStopped as stop:
            Console(stderr=True).print(
                f"stopped; go on with the same settings and --resume --folder {stop.folder}", soft_wrap=True
            )
            raise typer.Exit(130) from None
        except KeyboardInterrupt:  # before a run was begun, or after it
            raise typer.Exit(130) from None


def work_script(
    script: Path, arguments: Sequence[str], settings: Mapping[str, Any], joining: Joining
) -> None:
    """Run `script` as its own main program, whose first `fit` runs rollouts for a trainer elsewhere."""
    with overrides({**settings, "joining": joining}):
        run_script(script, arguments)
    raise ConfigError(
        f"{str(script)!r} ended and never called Trainer(...).fit(...), where a worker does its work; give "
        "the script that the trainer was started with"
    )


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run it as `python SCRIPT` would."""
    if not script.is_file():
        raise ConfigError(f"there is no script {str(script)!r}; give the path of a Python file")
    sys.argv = [str(script), *arguments]
    # what `python SCRIPT` and `python -m` would find, both
    sys.path[:0] = [str(script.parent.resolve()), os.getcwd()]
    for name in ("no_proxy", "NO_PROXY"):  # the gateway is on this machine, whatever proxy leads outside
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    runpy.run_path(str(script), run_name="__main__")
