"""SkyPilot: one machine in a cloud, which does everything; a managed job begins again what was taken away."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from lightning_core.deploy.deployment import RUNS, Deployment, Place
from lightning_core.errors import ConfigError

Document = dict[str, Any]


def make_task(deployment: Deployment, files: Path) -> Document:
    """The content of `sky.yaml`. Raises ConfigError for a spot machine whose store would go with it."""
    if deployment.spot and deployment.store is None:
        raise ConfigError(
            "a spot machine is taken away with its disk, and the run's store with it: give a database of "
            "your own with --set store=postgresql://user@db.example/runs, or leave --spot out"
        )
    outlives = deployment.store is not None  # a file of SQLite does not work in a bucket
    folder = f"{RUNS if outlives else 'runs'}/{deployment.name}"
    command = shlex.join(["agentlightning", *deployment.train(Place(deployment.store, folder))])
    task: Document = {"name": deployment.name, "workdir": ".", "resources": _resources(deployment)}
    if outlives:
        bucket = {"name": f"{deployment.name}-runs", "mode": "MOUNT_CACHED", "persistent": True}
        task["file_mounts"] = {RUNS: bucket}
    if names := deployment.variables if outlives else deployment.secrets:
        task["secrets"] = dict.fromkeys(names)
    return {**task, "setup": _setup(deployment, files), "run": f"source ~/env/bin/activate\n{command}\n"}


def _resources(deployment: Deployment) -> Document:
    resources: Document = {"disk_size": 100}
    if deployment.gpu is None:
        resources |= {"cpus": "4+", "memory": "16+"}
    else:
        resources["accelerators"] = f"{deployment.gpu.name}:{deployment.gpu.count}"
    if deployment.spot:
        resources |= {"use_spot": True, "job_recovery": {"max_restarts_on_errors": 3}}
    if deployment.clouds:
        resources["any_of"] = [{"infra": cloud} for cloud in deployment.clouds]
    return resources


def _setup(deployment: Deployment, files: Path) -> str:
    """An environment of its own: SkyPilot's machines have an older Python."""
    folder = (files / "python").as_posix()
    wanted = f"-r {folder}/requirements.txt -r {folder}/requirements-local.txt"
    if deployment.image == "verl":
        wanted += " verl vllm"
    return (
        f"sudo ln -sfn $PWD/{folder} /python\n"
        f"uv venv ~/env --seed --python {deployment.python}\n"
        "source ~/env/bin/activate\n"
        f"uv pip install -c {folder}/constraints.txt {wanted}\n"
    )
