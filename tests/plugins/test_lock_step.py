"""The project's own plugins run in lock step with the core."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import lightning_core
from lightning_core.plugins import load_plugins

FOLDERS = sorted(path.parent for path in Path(__file__).parents[2].glob("plugins/[a-z]*/pyproject.toml"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_plugin_has_the_cores_version_and_needs_just_that(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["version"] == lightning_core.__version__
    assert f"agent-lightning-core=={lightning_core.__version__}" in project["dependencies"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_plugin_is_installed_at_that_version_and_has_both_hooks(folder: Path) -> None:
    if folder.name == "crewai" and int(version("openai").partition(".")[0]) >= 3:
        pytest.skip("CrewAI needs openai 2")
    if folder.name in ("google_adk", "llama_index") and find_spec(f"lightning_{folder.name}") is None:
        pytest.skip("it is installed in the other environment")
    plugins = load_plugins([folder.name])
    assert plugins.broken == {}
    [info] = [info for info in plugins.list() if info.name == folder.name]
    assert info.version == lightning_core.__version__
    assert [name for name in info.hooks if name != "lightning_install"] == [
        "lightning_attach",
        "lightning_who",
    ]
