"""`agentlightning train`, `worker` and `deploy`: they run a user's script, and call its trainer's methods."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lightning_core.cli.serving import say
from lightning_core.deploy.deployment import inside, read_deployment
from lightning_core.errors import ConfigError, LightningError, TrainingStopped
from lightning_core.insight.failures import key_hint
from lightning_core.texts.masking import without_password
from lightning_core.texts.terminal import Terminal, shown
from lightning_core.trainer.launch import Launch, launching
from lightning_core.trainer.preflight import show_plan
from lightning_core.trainer.roles.joining import Joining
from lightning_core.trainer.trainer import Trainer

SET: Final = "Any setting of the trainer, its backend or its algorithm; may be repeated."
_OWN = "A setting of the worker, such as concurrency=8 or workers=ray:8; may be repeated."


_PYTHON: Final = {"True": True, "False": False, "None": None}
"""Values as Python writes them, beside JSON's."""

_STORE: Final = re.compile(r"((?:--set=)?store=)(.*)")


class Target(StrEnum):
    """Engines there are files for."""

    DOCKER = "docker"
    HELM = "helm"
    RAY = "ray"
    SKY = "sky"


def train(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that calls Trainer(...).fit(...).")],
    steps: Annotated[int | None, typer.Option(help="Updates to make.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of the store.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The run's folder (default: runs/<date-time>).")] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --folder, or the newest one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its memory; start and write nothing.")
    ] = False,
) -> None:
    """Run a training script; these options replace its settings.

    --set takes any setting of Trainer, as JSON or text, and may be repeated: --set seed=1
    --set model=Qwen/Qwen3-0.6B --set backend=verl. Settings of backend and algorithm have a dot: --set
    backend.gpus=4 --set algorithm.entropy=0.01. Arguments after `--` go to the script. Ctrl-C ends cleanly;
    the same command with --resume continues from the last update.

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


def deploy(
    context: typer.Context,
    target: Annotated[Target, typer.Argument(help="Docker Compose, Helm, KubeRay or SkyPilot.")],
    script: Annotated[Path, typer.Argument(help="A Python script that calls Trainer(...).fit(...).")],
    workers: Annotated[int, typer.Option(help="Maximum number of workers.")] = 2,
    gpu: Annotated[str | None, typer.Option(help="GPUs of the trainer, such as L40S:1.")] = None,
    cloud: Annotated[str | None, typer.Option(help="Clouds for SkyPilot, separated by commas.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Use spot machines.")] = False,
    secret: Annotated[
        list[str] | None, typer.Option(help="Name of a variable with a secret; may be repeated.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the trainer, as with `train`."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("deploy"),
    up: Annotated[bool, typer.Option("--up", help="Start it, and wait for the first reward.")] = False,
    down: Annotated[bool, typer.Option("--down", help="Remove all but data, and list the data.")] = False,
) -> None:
    """Write files that run a script in containers: trainer, gateway, workers and PostgreSQL.

    Run it in your project's folder, which goes into the image. You can edit and commit the files; they hold
    no secrets. --up and --down use your docker, helm, kubectl or sky.

        agentlightning deploy docker train.py --secret OPENAI_API_KEY --up
    """
    if up and down:
        raise typer.BadParameter("give --up or --down, not both")
    settings = tuple(given or ())
    again = start_again(sys.argv[1:])  # the script gets a command line of its own

    def use(trainer: Trainer, solve: object, **tasks: Any) -> None:
        from lightning_core.deploy import engines  # the writers and their YAML

        deployment = read_deployment(
            trainer,
            script,
            context.args,
            settings,
            workers=workers,
            gpu=gpu,
            secrets=secret or (),
            clouds=[each.strip() for each in cloud.split(",")] if cloud else (),
            spot=spot,
        )
        engine, files = engines.ENGINES[target], Path(inside(out))
        if down:
            engines.stop(engine, deployment, files, say)
            return
        if not (up and (files / engine.main).exists()):
            title = f"Made by `agentlightning deploy {target} {script}`; yours to edit and to commit."
            engines.write_files(engine, deployment, files, list(sys.modules), title)
            say(f"wrote {files / engine.main} and what it needs")
        if up:
            engines.start(engine, deployment, files, say)
        else:
            say(f"start it: {shlex.join(again)}")

    call_once(script, context.args, read_launch(settings, {}), use)


def start_again(given: Sequence[str]) -> list[str]:
    """The same command with --up, before the script's own arguments, and without the store's password."""
    words = [_STORE.sub(lambda found: found[1] + without_password(found[2]), word) for word in given]
    end = words.index("--") if "--" in words else len(words)
    return ["agentlightning", *words[:end], "--up", *words[end:]]


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
        write_page(Path(summary.folder))
        return summary

    if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # see `app.main`
        said = "Ctrl-C is ignored here, as this process was started in the background; end it with"
        say(f"{said}: kill {os.getpid()}")
    try:
        run_script(script, arguments, replace(launch, call=fit))
    except TrainingStopped as stop:
        say(f"stopped; to continue, add --resume --folder {stop.folder} to the same settings")
        raise typer.Exit(130) from None
    except KeyboardInterrupt:  # before a run was begun, or after it
        raise typer.Exit(130) from None
    if not called:
        raise _never_fitted(script)


def write_page(folder: Path) -> None:
    """Write the page of a finished run into its folder. What keeps it from that is told, and ends nothing."""
    from lightning_core.console.saving import write_report
    from lightning_core.plugins import load_plugins

    try:
        say(f"page        {write_report(folder, load_plugins())}")
    except Exception as problem:  # the run has ended well all the same
        kind = "" if isinstance(problem, LightningError | OSError) else f"{type(problem).__name__}: "
        say(f"no page     {kind}{problem}")


def plan_script(script: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run `script` up to its first `fit`, and print what that would train. Exits with 1 if a check fails."""
    plans = []

    def plan(trainer: Trainer, solve: object, **tasks: Any) -> None:
        plans.append(trainer.plan(**tasks))
        show_plan(plans[-1], Terminal())

    call_once(script, arguments, launch, plan)
    if any(check.holds is False for check in plans[0].checks):
        raise typer.Exit(1)


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
        run_script(script, arguments, replace(launch, call=once))
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
    try:
        with launching(launch):
            runpy.run_path(str(script), run_name="__main__")
    except LightningError:
        raise
    except Exception as error:  # whatever the user's script raises is the user's to read
        sys.stderr.write(shown(script_traceback(error, str(script))))
        if (hint := key_hint(str(error))) is not None:
            sys.stderr.write(f"hint: {hint}\n")
        raise typer.Exit(1) from None


def script_traceback(error: Exception, script: str) -> str:
    """The traceback as `python SCRIPT` shows it: without the frames that lead to the script."""
    told = traceback.TracebackException.from_exception(error)
    first = next((place for place, frame in enumerate(told.stack) if frame.filename == script), None)
    told.stack = traceback.StackSummary.from_list([] if first is None else list(told.stack)[first:])
    return "".join(told.format())


def read_launch(given: Sequence[str], named: Mapping[str, Any]) -> Launch:
    """The launch of `--set NAME=VALUE` options and of those with a name of their own, None if not given.

    A value is JSON, True, False or None if it can be read so, else text. Raises ConfigError for an option
    without "=".
    """
    settings = {name: value for name, value in named.items() if value is not None}
    parts: dict[str, dict[str, Any]] = {"backend": {}, "algorithm": {}}
    for each in given:
        name, separator, text = each.partition("=")
        if not separator:
            raise ConfigError(f"--set {each!r}: give NAME=VALUE, such as concurrency=64")
        part, dot, own = name.partition(".")
        target, key = (parts[part], own) if dot and part in parts else (settings, name)
        target[key] = _read_value(text)
    return Launch(settings, parts["backend"], parts["algorithm"])


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _PYTHON.get(text, text)
