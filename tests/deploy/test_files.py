"""The writers' files against golden ones, and refusals before anything is written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lightning_core.deploy.deployment import Deployment, Gpu
from lightning_core.deploy.engines import ENGINES, start, stop, write_files
from lightning_core.errors import ConfigError
from tests.deploy.cases import FILES, GOLDEN, PAIRS, SCRIPTS, in_folder, read, read_case, render


@pytest.mark.parametrize(("case", "target"), PAIRS)
def test_a_script_gives_the_files_that_were_read_by_a_person(case: str, target: str) -> None:
    """`python -m tests.deploy.cases` writes them."""
    for name, text in render(case, target).items():
        assert (GOLDEN / case / f"{target}-{name}").read_text() == text


@pytest.mark.parametrize(("case", "target"), PAIRS)
def test_no_file_holds_a_password(case: str, target: str) -> None:
    assert "secret@" not in "".join(render(case, target).values())


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY=sk-abcdefghijklmnop1234", "sk-abcdefghijklmnop1234", "A B", "", "-k"]
)
def test_a_secret_is_a_name_and_its_value_is_never_repeated(name: str) -> None:
    with pytest.raises(ConfigError, match="name of an environment variable") as refused:
        Deployment("boats", "train.py", secrets=(name,))
    assert "abcdefghijklmnop" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "judge_api_key=abcdef",
        "address=https://me:hunter2@host",
        "key=sk-proj-abcdefghijklmnopqrst",
        "hf_abcdefghijklmnopqrstuv",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_looks_like_a_key_stands_in_no_file(text: str) -> None:
    for given in ({"settings": (text,)}, {"arguments": (text,)}):
        with pytest.raises(ConfigError, match="looks like a key"):
            Deployment("boats", "train.py", **given)


def test_what_a_container_does_not_reach_is_refused_by_name(tmp_path: Path) -> None:
    plain = SCRIPTS / "plain.py"
    with pytest.raises(ConfigError, match=r"store 'postgresql://localhost/runs' is on this machine"):
        read(plain, "store=postgresql://localhost/runs")
    with pytest.raises(ConfigError, match=r"model '/\S+' lies outside"):
        read(plain, f"model={tmp_path}")
    with pytest.raises(ConfigError, match=r"folder=.*the deployment sets it"):
        read(plain, "folder=runs/x")
    with pytest.raises(ConfigError, match=r"give NAME:COUNT, such as L40S:1"):
        read(plain, gpu="L40S:none")
    with pytest.raises(ConfigError, match="backend 'verl' trains on GPUs"):
        read(plain, "backend=verl")
    with pytest.raises(ConfigError, match="workers=0"):
        read(plain, workers=0)
    script = tmp_path / "train.py"
    script.write_text(plain.read_text())
    with pytest.raises(ConfigError, match="is not below"):
        read(script)


def test_the_grace_period_is_longer_than_the_longest_rollout() -> None:
    assert read_case("gpu").grace == 3630
    assert read_case("plain").grace == 330
    assert read_case("program").grace == 3630, "a rollout without a time-out"


def test_a_gpu_has_a_name_and_a_count() -> None:
    assert Gpu.read("L40S") == Gpu("L40S", 1)
    assert Gpu.read("H100:8") == Gpu("H100", 8)


def test_files_that_may_have_been_edited_are_not_replaced(tmp_path: Path) -> None:
    with in_folder(tmp_path):
        FILES.mkdir()
        (FILES / "compose.yaml").write_text("mine")
        with pytest.raises(ConfigError, match="may have been edited"):
            write_files(ENGINES["docker"], read_case("plain"), FILES, [], "made by a test")
        assert (FILES / "compose.yaml").read_text() == "mine"


def test_ray_is_for_verl_alone() -> None:
    with pytest.raises(ConfigError, match="backend 'local' needs no Ray"):
        render("plain", "ray")


def test_a_spot_machine_must_not_take_the_store_with_it() -> None:
    with pytest.raises(ConfigError, match="taken away with its disk"):
        ENGINES["sky"].make(read(SCRIPTS / "plain.py", spot=True), FILES)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file with the arguments of a program in docker's place; docker itself wants a daemon."""
    asked = tmp_path / "asked"
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\necho "what docker says"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return asked


def test_up_makes_a_password_that_only_the_user_may_read_and_asks_docker(
    docker: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    with in_folder(tmp_path):
        FILES.mkdir()
        start(ENGINES["docker"], read_case("plain"), FILES, said.append)
        password = (FILES / ".env").read_text()
        assert re.fullmatch(r"PGPASSWORD=\S{32}\n", password)
        assert (FILES / ".env").stat().st_mode & 0o777 == 0o600
        assert password.strip().partition("=")[2] not in "".join(said) + docker.read_text()
        stop(ENGINES["docker"], read_case("plain"), FILES, said.append)
        assert (FILES / ".env").read_text() == password
    up, look, down, left = docker.read_text().splitlines()
    assert up == "compose --file deploy/compose.yaml up --build --detach"
    assert look.endswith("trainer -m lightning_core.deploy.first_reward /runs/plain")
    assert down == "compose --file deploy/compose.yaml --profile serve down --remove-orphans"
    assert left == "volume ls --quiet --filter label=com.docker.compose.project=plain"
    assert "what stays, as it holds the runs: what docker says" in said
    assert said[-1] == "take it away too: docker compose --file deploy/compose.yaml down --volumes"


def test_a_secret_without_a_value_is_told_before_anything_is_started(docker: Path, tmp_path: Path) -> None:
    with in_folder(tmp_path):
        FILES.mkdir()
        with pytest.raises(ConfigError, match=r"PGPASSWORD, OPENAI_API_KEY has no value: write NAME=value"):
            start(ENGINES["docker"], read_case("own-store"), FILES, print)
    assert not docker.exists()


def test_a_program_that_is_missing_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="'helm' is not installed here"):
        start(ENGINES["helm"], read_case("plain"), FILES, print)
