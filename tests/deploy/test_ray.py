"""The job for KubeRay, checked against KubeRay's own schema, its pod against that of Kubernetes."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.cases import HERE, render
from tests.deploy.test_helm import VERSIONS

SCHEMA = json.loads((HERE / "schemas/rayjob.json").read_text())


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render("gpu", "ray")["rayjob.yaml"]))


def pod(job: dict[str, Any]) -> dict[str, Any]:
    template = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    metadata = {"name": "head", **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_kuberay_and_every_version_of_kubernetes_take_the_job() -> None:
    volume, job = documents()
    jsonschema.validate(job, SCHEMA)
    for version in VERSIONS:
        kubernetes_validate.validate(volume, version, strict=True)
        kubernetes_validate.validate(pod(job), version, strict=True)


@pytest.mark.parametrize(
    ("path", "typo"),
    [((), "shutdownAfterJobFinish"), (("rayClusterSpec",), "headGroup"), ((), "backofLimit")],
)
def test_kuberays_schema_refuses_a_typo(path: tuple[str, ...], typo: str) -> None:
    job = copy.deepcopy(documents()[1])
    place = job["spec"]
    for step in path:
        place = place[step]
    place[typo] = True
    with pytest.raises(jsonschema.ValidationError, match=typo):
        jsonschema.validate(job, SCHEMA)


def test_a_typo_in_its_pod_is_refused_as_in_any_pod() -> None:
    head = pod(copy.deepcopy(documents()[1]))
    head["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        kubernetes_validate.validate(head, VERSIONS[0], strict=True)
