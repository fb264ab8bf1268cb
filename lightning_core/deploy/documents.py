"""The document of each engine for a deployment: Docker Compose, Helm, KubeRay and SkyPilot."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

from lightning_core.deploy.deployment import (
    OWN_STORE,
    PORT,
    RUNS,
    USER,
    Deployment,
    DeploymentPlace,
    hosts_of,
)
from lightning_core.errors import ConfigError
from lightning_core.stores.credentials import NAMED

Document = dict[str, Any]

# Docker Compose: all parts of a run on one machine ------------------------------------------------
POSTGRES_IMAGE: Final = "postgres:17"
_PROBE: Final = f"__import__('urllib.request').request.urlopen('http://127.0.0.1:{PORT}/healthz',timeout=5)"
"""Without a space: podman takes a command of several words apart at each."""


def make_compose(deployment: Deployment, files: Path) -> Document:
    """The content of `compose.yaml`, which lies in the folder `files`, relative to the app's."""
    host = "gateway" if deployment.gateway else "trainer"
    place = DeploymentPlace(
        deployment.store or OWN_STORE.format(host="postgres"),
        f"{RUNS}/{deployment.name}",
        f"http://{host}:{PORT}",
    )
    heavy = deployment.image
    services: Document = {
        "trainer": {
            **_part(deployment, place, files, heavy),
            "command": _literal(deployment.train(place)),
            "restart": "on-failure",
            **_devices(deployment),
        },
        "worker": {
            **_part(deployment, place, files, "core"),
            "command": _literal(deployment.work(place)),
            "restart": "unless-stopped",
            "deploy": {"replicas": deployment.workers},
            "volumes": [],
        },
        "serve": {
            **_part(deployment, place, files, heavy, app=False),
            "command": deployment.serve(place, "serve", "${SERVE_VERSION:+@${SERVE_VERSION}}"),
            "profiles": ["serve"],
            "restart": "unless-stopped",
            "healthcheck": _healthy(),
            "ports": [f"127.0.0.1:{PORT}:{PORT}"],
            **_devices(deployment),
        },
    }
    if deployment.gateway:
        services["gateway"] = {
            **_part(deployment, place, files, heavy, app=False),
            "command": _literal(deployment.answer(place, "--name", "gateway")),
            "restart": "unless-stopped",
            "healthcheck": _healthy(),
        }
    volumes: Document = {"runs": {}}
    if deployment.store is None:
        services["postgres"] = _postgres()
        volumes["postgres"] = {}
        for part in services.values():
            if part is not services["postgres"]:
                part["depends_on"] = {"postgres": {"condition": "service_healthy"}}
    return {"name": deployment.name, "services": services, "volumes": volumes}


def _literal(words: list[str]) -> list[str]:
    """A command in which Compose replaces no variables."""
    return [word.replace("$", "$$") for word in words]


def _part(
    deployment: Deployment, place: DeploymentPlace, files: Path, image: str, *, app: bool = True
) -> Document:
    """Returns the part that all of our own containers share. `app`: the user's code runs there, and gets its
    secrets."""
    names = deployment.variables if app else (deployment.password,)
    up = Path(*[".."] * len(files.parts)).as_posix()
    return {
        "image": f"{deployment.name}-{image}",
        "build": {
            "context": up,
            "dockerfile": (files / "Dockerfile").as_posix(),
            "target": image,
            "args": {"FILES": files.as_posix(), "BASE": f"${{BASE:-python:{deployment.python}-slim}}"},
        },
        "environment": {
            NAMED: _literal([str(place.store)])[0],
            **{name: f"${{{name}:?write it to .env beside this file}}" for name in names},
        },
        "volumes": [f"runs:{RUNS}"],
        "tmpfs": ["/tmp"],
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "stop_grace_period": f"{deployment.grace}s",
    }


def _healthy() -> Document:
    """Only of what listens; a gateway listens when the run has weights."""
    return {
        "test": ["CMD", "python", "-c", _PROBE],
        "interval": "10s",
        "timeout": "10s",
        "start_period": "600s",
    }


def _postgres() -> Document:
    return {
        "image": f"${{POSTGRES_IMAGE:-{POSTGRES_IMAGE}}}",
        "environment": {
            "POSTGRES_USER": "lightning",
            "POSTGRES_DB": "lightning",
            "POSTGRES_PASSWORD": "${PGPASSWORD:?write it to .env beside this file}",
        },
        "volumes": ["postgres:/var/lib/postgresql/data"],
        "healthcheck": {
            "test": ["CMD", "pg_isready", "--username", "lightning", "--host", "127.0.0.1"],
            "interval": "2s",
            "retries": 30,
        },
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
    }


def _devices(deployment: Deployment) -> Document:
    if deployment.gpu is None:
        return {}
    device = {"driver": "nvidia", "count": deployment.gpu.count, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}


# Helm: the values of one script for the chart of this package -------------------------------------
REGISTRY: Final = "registry.example"
"""In the names of images, for the user to replace."""


def make_values(deployment: Deployment) -> Document:
    """The content of `values.yaml`."""
    name = deployment.name
    place = DeploymentPlace(
        deployment.store or OWN_STORE.format(host=f"{name}-postgres"),
        f"{RUNS}/{name}",
        f"http://$(POD_IP):{PORT}",
    )
    heavy = f"{REGISTRY}/{name}-{deployment.image}:1"
    secret = list(deployment.variables)
    own = [deployment.password]
    serve = deployment.serve(place, f"{name}-serve")
    return {
        "name": name,
        "secret": name,
        "store": place.store,
        "graceSeconds": deployment.grace,
        "storage": {"size": "50Gi", "accessMode": "ReadWriteOnce"},
        "trainer": {
            "enabled": True,
            "image": heavy,
            "args": deployment.train(place),
            "variables": secret,
            "resources": _resources(deployment, "2", "8Gi"),
            "tolerations": tolerations(deployment),
        },
        "gateway": {
            "enabled": deployment.gateway,
            "image": heavy,
            "args": deployment.answer(place, "--name", "$(POD_NAME)"),
            "variables": own,
            "replicas": 1,
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
        },
        "workers": {
            "image": f"{REGISTRY}/{name}-core:1",
            "args": deployment.work(place, "--name", "$(POD_NAME)"),
            "variables": secret,
            "replicas": deployment.workers,
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
            "tolerations": _spot(deployment),
            "keda": {"enabled": False, "namespace": "keda", "trigger": _trigger(deployment, place)},
        },
        "serve": {
            "enabled": False,
            "image": heavy,
            "run": serve[1],
            "version": None,
            "args": serve[2:],
            "variables": own,
            "resources": _resources(deployment, "1", "4Gi"),
        },
        "postgres": {"enabled": deployment.store is None, "image": POSTGRES_IMAGE, "size": "20Gi"},
    }


def _trigger(deployment: Deployment, place: DeploymentPlace) -> Document:
    """Returns KEDA's PostgreSQL trigger: as many workers as the waiting and running rollouts need."""
    if deployment.password != "PGPASSWORD":
        return {}
    where = hosts_of(str(place.store))
    query = f"SELECT count(*) FROM {where.pop('schema')}.rollouts WHERE status IN ('queued', 'running')"
    return {
        "passwordFromEnv": deployment.password,
        **where,
        "sslmode": "prefer",
        "query": query,
        "targetQueryValue": str(deployment.concurrency),
    }


def _resources(deployment: Deployment, cpu: str, memory: str) -> Document:
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    return (
        requests
        if deployment.gpu is None
        else {**requests, "limits": {"nvidia.com/gpu": deployment.gpu.count}}
    )


def tolerations(deployment: Deployment) -> list[Document]:
    """Returns tolerations of the taints that machines with GPUs have, and those that may be taken away."""
    gpu = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return [*(gpu if deployment.gpu else ()), *_spot(deployment)]


def _spot(deployment: Deployment) -> list[Document]:
    """The taints of spot machines on AKS and GKE; EKS has none of its own."""
    keys = {"kubernetes.azure.com/scalesetpriority": "spot", "cloud.google.com/gke-spot": "true"}
    return [
        {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for key, value in (keys.items() if deployment.spot else ())
    ]


# KubeRay: a job of Ray for the backend `verl`, on one machine with all of its GPUs ----------------
RAY_VERSION: Final = "2.40.0"
"""The oldest that the extra `ray` takes; the image says which it is."""
_LINKS: Final = "mkdir -p /tmp/app && cp -rsf /app/. /tmp/app && cd /tmp/app && exec"
"""As the images' own entry point does, which Ray replaces."""


def make_job(deployment: Deployment) -> list[Document]:
    """The content of `rayjob.yaml`: a volume and a job. Raises ConfigError for another backend."""
    if deployment.backend != "verl" or deployment.gpu is None:
        raise ConfigError(
            f"backend {deployment.backend!r} needs no Ray: give `agentlightning deploy helm`, or train with "
            "--set backend=verl and --gpu"
        )
    place = DeploymentPlace(deployment.store, f"{RUNS}/{deployment.name}")
    command = ["agentlightning", *deployment.train(place)]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{deployment.name}-runs", "labels": _labels(deployment)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Gi"}}},
    }
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": deployment.name, "labels": _labels(deployment)},
        "spec": {
            "entrypoint": shlex.join(["sh", "-c", f"{_LINKS} {shlex.join(command)}"]),
            "backoffLimit": 20,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "rayVersion": RAY_VERSION,
                "headGroupSpec": {"rayStartParams": {}, "template": _pod(deployment)},
            },
        },
    }
    return [volume, job]


def _labels(deployment: Deployment) -> Document:
    return {"app.kubernetes.io/name": "agentlightning", "app.kubernetes.io/instance": deployment.name}


def _pod(deployment: Deployment) -> Document:
    assert deployment.gpu is not None
    names = deployment.variables if deployment.store else deployment.secrets
    named = [{"name": NAMED, "value": deployment.store}] if deployment.store else []
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": deployment.name, "key": name}}}
        for name in names
    ]
    container = {
        "name": "ray-head",
        "image": f"{REGISTRY}/{deployment.name}-verl:1",
        "env": [*named, *secrets],
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi"},
            "limits": {"nvidia.com/gpu": deployment.gpu.count},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "metadata": {"labels": _labels(deployment)},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": deployment.grace,
            "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
            "tolerations": tolerations(deployment),
            "containers": [container],
            "volumes": [
                {"name": "runs", "persistentVolumeClaim": {"claimName": f"{deployment.name}-runs"}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


# SkyPilot: one machine in a cloud; a managed job begins again what was taken away -----------------
def make_task(deployment: Deployment, files: Path) -> Document:
    """The content of `sky.yaml`. Raises ConfigError for a spot machine whose store would go with it."""
    if deployment.spot and deployment.store is None:
        raise ConfigError(
            "a spot machine is taken away with its disk, and the run's store with it: give a database of "
            "your own with --set store=postgresql://user@db.example/runs, or leave --spot out"
        )
    outlives = deployment.store is not None  # a file of SQLite does not work in a bucket
    folder = f"{RUNS if outlives else 'runs'}/{deployment.name}"
    command = shlex.join(["agentlightning", *deployment.train(DeploymentPlace(deployment.store, folder))])
    task: Document = {"name": deployment.name, "workdir": ".", "resources": _machine(deployment)}
    if outlives:
        bucket = {"name": f"{deployment.name}-runs", "mode": "MOUNT_CACHED", "persistent": True}
        task["file_mounts"] = {RUNS: bucket}
    if names := deployment.variables if outlives else deployment.secrets:
        task["secrets"] = dict.fromkeys(names)
    if outlives:
        task["envs"] = {NAMED: deployment.store}
    return {**task, "setup": _setup(deployment, files), "run": f"source ~/env/bin/activate\n{command}\n"}


def _machine(deployment: Deployment) -> Document:
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
