"""Docker Compose: all parts of a run on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lightning_core.deploy.deployment import OWN_STORE, PORT, RUNS, Deployment, Place

POSTGRES_IMAGE: Final = "postgres:17"
_PROBE: Final = f"__import__('urllib.request').request.urlopen('http://127.0.0.1:{PORT}/healthz',timeout=5)"
"""Without a space: podman takes a command of several words apart at each."""
Document = dict[str, Any]


def make_compose(deployment: Deployment, files: Path) -> Document:
    """The content of `compose.yaml`, which lies in the folder `files`, relative to the app's."""
    host = "gateway" if deployment.gateway else "trainer"
    place = Place(
        deployment.store or OWN_STORE.format(host="postgres"),
        f"{RUNS}/{deployment.name}",
        f"http://{host}:{PORT}",
    )
    heavy = deployment.image
    services: Document = {
        "trainer": {
            **_part(deployment, files, heavy),
            "command": deployment.train(place),
            "restart": "on-failure",
            **_devices(deployment),
        },
        "worker": {
            **_part(deployment, files, "core"),
            "command": deployment.work(place),
            "restart": "unless-stopped",
            "deploy": {"replicas": deployment.workers},
            "volumes": [],
        },
        "serve": {
            **_part(deployment, files, heavy, app=False),
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
            **_part(deployment, files, heavy, app=False),
            "command": deployment.answer(place, "--name", "gateway"),
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


def _part(deployment: Deployment, files: Path, image: str, *, app: bool = True) -> Document:
    """What all of our own containers have. `app`: the user's code runs there, and gets its secrets."""
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
        "environment": {name: f"${{{name}:?write it to .env beside this file}}" for name in names},
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
