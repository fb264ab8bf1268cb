"""Helm: the chart of this package, and the values of one script for it."""

from __future__ import annotations

from typing import Any, Final

from lightning_core.deploy.deployment import OWN_STORE, PORT, RUNS, Deployment, Place, hosts_of
from lightning_core.deploy.docker import POSTGRES_IMAGE

REGISTRY: Final = "registry.example"
"""In the names of images, for the user to replace."""
Document = dict[str, Any]


def make_values(deployment: Deployment) -> Document:
    """The content of `values.yaml`."""
    name = deployment.name
    place = Place(
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


def _trigger(deployment: Deployment, place: Place) -> Document:
    """Of KEDA's PostgreSQL scaler: as many workers as the rollouts that wait or run have need of."""
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
    """Of the taints that machines with GPUs have, and those that may be taken away."""
    gpu = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return [*(gpu if deployment.gpu else ()), *_spot(deployment)]


def _spot(deployment: Deployment) -> list[Document]:
    """The taints of spot machines on AKS and GKE; EKS has none of its own."""
    keys = {"kubernetes.azure.com/scalesetpriority": "spot", "cloud.google.com/gke-spot": "true"}
    return [
        {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for key, value in (keys.items() if deployment.spot else ())
    ]
