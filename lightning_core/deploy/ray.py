"""KubeRay: a job of Ray for the backend `verl`, on one machine with all of its GPUs."""

from __future__ import annotations

import shlex
from typing import Any, Final

from lightning_core.deploy.deployment import RUNS, USER, Deployment, Place
from lightning_core.deploy.helm import REGISTRY, tolerations
from lightning_core.errors import ConfigError

RAY_VERSION: Final = "2.40.0"
"""The oldest that the extra `ray` takes; the image says which it is."""
_LINKS: Final = "mkdir -p /tmp/app && cp -rsf /app/. /tmp/app && cd /tmp/app && exec"
"""As the images' own entry point does, which Ray replaces."""
Document = dict[str, Any]


def make_job(deployment: Deployment) -> list[Document]:
    """The content of `rayjob.yaml`: a volume and a job. Raises ConfigError for another backend."""
    if deployment.backend != "verl" or deployment.gpu is None:
        raise ConfigError(
            f"backend {deployment.backend!r} needs no Ray: give `agentlightning deploy helm`, or train with "
            "--set backend=verl and --gpu"
        )
    place = Place(deployment.store, f"{RUNS}/{deployment.name}")
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
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": deployment.name, "key": name}}}
        for name in names
    ]
    container = {
        "name": "ray-head",
        "image": f"{REGISTRY}/{deployment.name}-verl:1",
        "env": secrets,
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
