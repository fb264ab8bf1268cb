"""Compose's own binary and hadolint read what is written, and refuse what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.deploy.documents import make_compose
from tests.deploy.cases import CASES, FILES, SCRIPTS, read, render

BINARIES = Path(sys.executable).parent
SECRETS = {"PGPASSWORD": "p", "REDISCLI_AUTH": "p", "OPENAI_API_KEY": "k"}


def config(folder: Path, document: Any, **more: str) -> subprocess.CompletedProcess[str]:
    """Returns Compose's view of a document."""
    file = folder / "compose.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return subprocess.run(
        [BINARIES / "docker-compose", "--file", file, "--profile", "serve", "config", "--format", "json"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **more},
    )


@pytest.mark.parametrize("case", CASES)
def test_compose_reads_what_is_written_for_each_script(case: str, tmp_path: Path) -> None:
    done = config(tmp_path, render(case, "docker")["compose.yaml"], **SECRETS)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    for name in services.keys() - {"postgres"}:
        assert services[name]["read_only"], name
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["environment"].keys() <= SECRETS.keys() | {"LIGHTNING_STORE"}
        for port in services[name].get("ports", []):
            assert port["host_ip"] == "127.0.0.1", "nothing is public by itself"
    assert "OPENAI_API_KEY" not in services.get("gateway", {}).get("environment", {})


def test_a_missing_secret_is_told_by_name(tmp_path: Path) -> None:
    done = config(tmp_path, render("plain", "docker")["compose.yaml"])
    assert done.returncode
    assert "PGPASSWORD" in done.stderr
    assert "write it to .env" in done.stderr


def test_a_version_to_serve_is_a_number_in_the_environment(tmp_path: Path) -> None:
    text = render("plain", "docker")["compose.yaml"]

    def serves(**more: str) -> str:
        done = config(tmp_path, text, **SECRETS, **more)
        return str(json.loads(done.stdout)["services"]["serve"]["command"][1])

    assert serves() == "/runs/plain"
    assert serves(SERVE_VERSION="12") == "/runs/plain@12"


def test_a_dollar_in_arguments_and_settings_reaches_the_script(tmp_path: Path) -> None:
    deployment = read(
        SCRIPTS / "plain.py",
        'agents=["$HOME", "${a}"]',
        arguments=("--cost", "$5"),
    )
    done = config(tmp_path, make_compose(deployment, FILES), **SECRETS)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout.replace("$$", "$"))["services"]  # printed to be read again
    for name in ("trainer", "worker"):
        assert 'agents=["$HOME", "${a}"]' in services[name]["command"]
        assert services[name]["command"][-2:] == ["--cost", "$5"]


@pytest.mark.parametrize(
    ("service", "change", "named"),
    [
        ("worker", {"healtcheck": {}}, "healtcheck"),
        ("worker", {"deploy": {"replica": 2}}, "replica"),
        ("trainer", {"stop_grace_period": "soon"}, "duration"),
        ("trainer", {"depends_on": {"postgress": {"condition": "service_healthy"}}}, "postgress"),
        ("gateway", {"volumes": ["nowhere:/runs"]}, "nowhere"),
    ],
)
def test_compose_refuses_a_typo(service: str, change: dict[str, Any], named: str, tmp_path: Path) -> None:
    document = yaml.safe_load(render("plain", "docker")["compose.yaml"])
    document["services"][service] |= change
    done = config(tmp_path, document, **SECRETS)
    assert done.returncode
    assert named in done.stderr


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BINARIES / "hadolint", "--no-color", file], capture_output=True, text=True)


def test_hadolint_finds_nothing_in_the_dockerfile_and_something_in_a_worse_one(tmp_path: Path) -> None:
    text = (files("lightning_core.deploy") / "files/Dockerfile").read_text()
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    assert lint(file).stdout == ""
    for good, bad, rule in (
        ("COPY . /app", "ADD . /app", "DL3020"),
        ("USER 10001:10001", "USER root", "DL3002"),
        (" AS libraries-local", " AS libraries", "DL3024"),
    ):
        file.write_text(text.replace(good, bad))
        found = lint(file)
        assert found.returncode == 1
        assert rule in found.stdout
