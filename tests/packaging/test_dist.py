"""The wheel of `make dist`: installed where there is no clone, it trains; and an index can show its page."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import lightning_core
from tests.packaging.first_hour import ROOT, build, say
from tests.test_docs import links

PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/[a-z]*/pyproject.toml"))
INSTALLED = ["langgraph"]
"""Plugins that are built here; their files are alike, and `make dist` builds all."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(folder, *INSTALLED)
    return folder


def test_both_archives_of_each_hold_the_licence_and_nothing_of_the_workshop(dist: Path) -> None:
    wheels, archives = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    assert len(wheels) == len(archives) == 1 + len(INSTALLED)
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    for archive in archives:
        with tarfile.open(archive) as inside:
            names = inside.getnames()
        assert f"{archive.name.removesuffix('.tar.gz')}/LICENSE" in names
        assert [name for name in names if "/.ci" in name] == []


def test_the_index_takes_the_page_and_its_links_lead_outside(dist: Path) -> None:
    say(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    for wheel in dist.glob("*.whl"):
        page = str(_metadata(wheel).get_payload())
        assert [link for link in links(page) if not link.startswith(("https://", "#"))] == []


def test_an_extra_of_each_framework_pulls_its_plugin_at_the_same_version(dist: Path) -> None:
    [wheel] = dist.glob("agent_lightning_core-*.whl")
    wanted = _metadata(wheel).get_all("Requires-Dist") or []
    for name in PLUGINS:
        project = tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text())["project"]
        extra = name.replace("_", "-")
        assert f"{project['name']}=={lightning_core.__version__}; extra == '{extra}'" in wanted


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_has_the_licence_of_the_core(name: str) -> None:
    assert (ROOT / "plugins" / name / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_wheels_train_where_there_is_no_clone(dist: Path, tmp_path: Path) -> None:
    """Only what others wrote comes from this environment, so that the test needs no network."""
    bare, work = tmp_path / "bare", tmp_path / "work"
    say(sys.executable, "-m", "venv", "--without-pip", bare)
    python = bare / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index")
    say(*pip, *dist.glob("*.whl"))
    site = say(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "others.pth").write_text(sysconfig.get_path("purelib"))
    work.mkdir()
    shutil.copy(ROOT / "tests/cli/small_job.py", work)
    free = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = say(python, "-c", "import lightning_core; print(lightning_core.__file__)", cwd=work, env=free)
    assert Path(found.strip()).is_relative_to(bare)
    command = (bare / "bin" / "agentlightning", "train", "small_job.py", "--folder", "run")
    say(*command, "--steps", "1", "--set", "progress=false", cwd=work, env=free)
    assert (work / "run" / "policy" / "model.safetensors").exists()


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as inside:
        [name] = [name for name in inside.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(inside.read(name))
