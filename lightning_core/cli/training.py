"""`agentlightning train` and `worker`: run the user's own script, and call its trainer's methods."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from lightning_core.errors import ConfigError, TrainingStopped
from lightning_core.trainer.launch import Launch, launching
from lightning_core.trainer.preflight import show_outline
from lightning_core.trainer.roles.joining import Joining
from lightning_core.trainer.trainer import Trainer

_BACKEND = "backend."


class _Done(BaseException):
    """Ends a script whose trainer has been called; not for the script to catch."""


def train_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run `script` as its own main program; every `fit` in it takes the launch's settings over its own."""
    try:
        run_script(script, arguments, launch)
    except TrainingStopped as stop:
        Console(stderr=True).print(
            f"stopped; go on with the same settings and --resume --folder {stop.folder}", soft_wrap=True
        )
        raise typer.Exit(130) from None
    except KeyboardInterrupt:  # before a run was begun, or after it
        raise typer.Exit(130) from None


def plan_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run `script` up to its first `fit`, and print what that would train."""

    def plan(trainer: Trainer, solve: object, **tasks: Any) -> None:
        show_outline(trainer.plan(**tasks), Console())
        raise _Done

    _call_once(script, arguments, Launch(launch.settings, launch.backend, plan))


def work_script(script: Path, arguments: Sequence[str], launch: Launch, joining: Joining) -> None:
    """Run `script` up to its first `fit`, in whose place rollouts are run for a trainer elsewhere."""

    def work(trainer: Trainer, solve: Any, **tasks: object) -> None:
        trainer.work(solve, joining)
        raise _Done

    _call_once(script, arguments, Launch(launch.settings, launch.backend, work))


def _call_once(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    try:
        run_script(script, arguments, launch)
    except _Done:
        return
    raise ConfigError(
        f"{str(script)!r} ended and never called Trainer(...).fit(...); give the script that the training is "
        "started with"
    )


def run_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run it as `python SCRIPT` would."""
    if not script.is_file():
        raise ConfigError(f"there is no script {str(script)!r}; give the path of a Python file")
    sys.argv = [str(script), *arguments]
    # what `python SCRIPT` and `python -m` would find, both
    sys.path[:0] = [str(script.parent.resolve()), os.getcwd()]
    for name in ("no_proxy", "NO_PROXY"):  # the gateway is on this machine, whatever proxy leads outside
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    with launching(launch):
        runpy.run_path(str(script), run_name="__main__")


def read_launch(given: Sequence[str], named: Mapping[str, Any]) -> Launch:
    """The launch of `--set NAME=VALUE` options and of those with a name of their own, None if not given.

    A value is JSON if it can be read so, else text. Raises ConfigError for an option without "=".
    """
    settings = {name: value for name, value in named.items() if value is not None}
    backend = {}
    for each in given:
        name, separator, text = each.partition("=")
        if not separator:
            raise ConfigError(f"--set {each!r}: give NAME=VALUE, such as concurrency=64")
        if name.startswith(_BACKEND):
            backend[name.removeprefix(_BACKEND)] = _read_value(text)
        else:
            settings[name] = _read_value(text)
    return Launch(settings, backend)


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
