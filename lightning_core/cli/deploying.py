"""`agentlightning deploy`: write the files that run a script elsewhere, and start or stop them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lightning_core.cli.serving import say
from lightning_core.cli.training import call_once, read_launch
from lightning_core.deploy.deployment import inside, read_deployment
from lightning_core.trainer.trainer import Trainer


class Target(StrEnum):
    """Engines there are files for."""

    DOCKER = "docker"
    HELM = "helm"
    RAY = "ray"
    SKY = "sky"


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
            say(f"start it: agentlightning deploy {target} {script} --out {files} --up")

    call_once(script, context.args, read_launch(settings, {}), use)
