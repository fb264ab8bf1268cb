"""`agentlightning train` and `worker`: run the user's own script, and call its trainer's methods."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lightning_core.cli.console import write_report
from lightning_core.cli.serving import say
from lightning_core.errors import ConfigError, LightningError, TrainingStopped
from lightning_core.trainer.launch import Launch, launching
from lightning_core.trainer.preflight import show_plan
from lightning_core.trainer.roles.joining import Joining
from lightning_core.trainer.trainer import Trainer

_BACKEND = "backend."
_SET = "Any setting of the trainer or of its backend; may be repeated."
_OWN = "A setting of the worker, such as concurrency=8 or workers=ray:8; may be repeated."


def train(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that calls Trainer(...).fit(...).")],
    steps: Annotated[int | None, typer.Option(help="Updates to make.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of the store.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The run's folder (default: runs/<date-time>).")] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_SET)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --folder, or the newest one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its memory; start and write nothing.")
    ] = False,
) -> None:
    """Run a training script; these options replace its settings.

    --set takes any setting of Trainer, as JSON or text, and may be repeated: --set seed=1
    --set model=Qwen/Qwen3-0.6B --set backend=verl. A setting of the backend is --set backend.gpus=4.
    Arguments after `--` go to the script. Ctrl-C ends cleanly; the same command with --resume continues from
    the last update.

        agentlightning train examples/sql/train.py --steps 20 --set seed=1
    """
    named = {
        "steps": steps,
        "store": store,
        "folder": folder,
        "resume": resume or None,
    }
    (plan_script if dry_run else train_script)(script, context.args, read_launch(given or (), named))


def worker(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The script that the trainer was started with.")],
    store: Annotated[str, typer.Option(help="URL of the run's store.")],
    run: Annotated[
        str | None, typer.Option(help="Id of the run (default: this script's newest in training).")
    ] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_OWN)] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this worker; restarted with it, it gives its old rollouts back at once."),
    ] = None,
) -> None:
    """Run rollouts for a trainer that was started with `train --set remote=runner`.

    Start any number of workers, before or after the trainer, on any machine that reaches store and gateway.
    Each waits while the trainer or the gateway is away, and ends when the run is finished. Ctrl-C gives back
    its rollouts.

        agentlightning worker examples/sql/train.py --store postgresql://me@db.local/runs
    """
    joining = Joining(store=store, run=run, name=name, say=say)
    work_script(script, context.args, read_launch(given or (), {}), joining)


# what the verbs do ------------------------------------------------------------------------
class _Done(BaseException):
    """Ends a script whose trainer has been called; not for the script to catch."""


def train_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run `script` as its own main program; every `fit` in it takes the launch's settings over its own.

    Raises ConfigError if it ends without a `fit`.
    """
    called = False

    def fit(trainer: Trainer, solve: Any, **tasks: Any) -> Any:
        nonlocal called
        called = True
        summary = Trainer.fit(trainer, solve, **tasks)
        write_report(Path(summary.folder))
        return summary

    try:
        run_script(script, arguments, Launch(launch.settings, launch.backend, fit))
    except TrainingStopped as stop:
        Console(stderr=True).print(
            f"stopped; to continue, add --resume --folder {stop.folder} to the same settings", soft_wrap=True
        )
        raise typer.Exit(130) from None
    except KeyboardInterrupt:  # before a run was begun, or after it
        raise typer.Exit(130) from None
    if not called:
        raise _never_fitted(script)


def plan_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run `script` up to its first `fit`, and print what that would train."""

    def plan(trainer: Trainer, solve: object, **tasks: Any) -> None:
        show_plan(trainer.plan(**tasks), Console())

    call_once(script, arguments, launch, plan)


def work_script(script: Path, arguments: Sequence[str], launch: Launch, joining: Joining) -> None:
    """Run `script` up to its first `fit`, in whose place rollouts are run for a trainer elsewhere."""

    def work(trainer: Trainer, solve: Any, **tasks: object) -> None:
        trainer.work(solve, joining)

    call_once(script, arguments, launch, work)


def call_once(script: Path, arguments: Sequence[str], launch: Launch, call: Callable[..., None]) -> None:
    """Run `script` up to its first `fit`, in whose place `call` gets the trainer and the arguments. Raises
    ConfigError if there is none."""

    def once(*given: Any, **named: Any) -> None:
        call(*given, **named)
        raise _Done

    try:
        run_script(script, arguments, Launch(launch.settings, launch.backend, once))
    except _Done:
        return
    raise _never_fitted(script)


def _never_fitted(script: Path) -> ConfigError:
    return ConfigError(
        f"{str(script)!r} ended and never called Trainer(...).fit(...): call it in the script, under "
        '`if __name__ == "__main__":` too, or give another script'
    )


def run_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run it as `python SCRIPT` would. An error of its own is shown from its first line on, and ends the
    command."""
    if not script.is_file():
        raise ConfigError(f"there is no script {str(script)!r}; give the path of a Python file")
    sys.argv = [str(script), *arguments]
    # what `python SCRIPT` and `python -m` would find, both
    sys.path[:0] = [str(script.parent.resolve()), os.getcwd()]
    for name in ("no_proxy", "NO_PROXY"):  # the gateway is on this machine, whatever proxy leads outside
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    try:
        with launching(launch):
            runpy.run_path(str(script), run_name="__main__")
    except LightningError:
        raise
    except Exception as error:  # whatever the user's script raises is the user's to read
        sys.stderr.write(script_traceback(error, str(script)))
        raise typer.Exit(1) from None


def script_traceback(error: Exception, script: str) -> str:
    """The traceback as `python SCRIPT` shows it: without the frames that lead to the script."""
    told = traceback.TracebackException.from_exception(error)
    first = next((place for place, frame in enumerate(told.stack) if frame.filename == script), None)
    told.stack = traceback.StackSummary.from_list([] if first is None else list(told.stack)[first:])
    return "".join(told.format())


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
