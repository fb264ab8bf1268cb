"""The laws of the package: found by its entry point, light to load, silent about what is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from openai import DefaultHttpxClient, OpenAI

from lightning_core.plugins import load_plugins
from lightning_core.testing.framework import Framework
from lightning_core.testing.server import serving
from lightning_core.testing.stage import Stage
from lightning_core.tracing.openai_sdk import instrument

_ASK = """
import sys
from lightning_core.errors import PluginError
from lightning_core.plugins import load_plugins

plugins = load_plugins([{plugin!r}])
assert not plugins.broken, plugins.broken
assert plugins.who() is None, f"lightning_who answers {{plugins.who()}} though nothing runs"
try:
    plugins.attach(object())
except PluginError as error:
    assert "no plugin takes" in str(error), error
else:
    raise AssertionError("lightning_attach takes any object; return None for what is not the framework's")
heavy = {heavy!r} & {{name.partition(".")[0] for name in sys.modules}}
assert not heavy, f"loading or asking the plugin imports {{heavy}}; look in sys.modules instead"
"""


@pytest.fixture
def framework() -> Framework:
    """To be given by the adapter's own tests."""
    pytest.fail(
        "define a fixture `framework` in this module, below the import of the laws; it returns an instance "
        "of your subclass of lightning_core.testing.conformance.Framework",
        pytrace=False,
    )


@pytest.fixture
def stage(framework: Framework) -> Iterator[Stage]:
    """The framework between two servers, its plugin loaded, all requests tagged."""
    plugins = load_plugins([framework.plugin])
    if framework.plugin in plugins.broken:
        pytest.fail(str(plugins.broken[framework.plugin]), pytrace=False)
    client = OpenAI(api_key="none", max_retries=0, http_client=DefaultHttpxClient(verify=False))
    with serving() as gateway, serving() as hosted, instrument(plugins.who), client:
        yield Stage(framework, gateway, hosted, client)


def test_the_plugin_is_found_by_its_entry_point(framework: Framework) -> None:
    plugins = load_plugins([framework.plugin])
    hooks = {info.name: info.hooks for info in plugins.list()}
    if framework.plugin not in hooks:
        pytest.fail(
            f"no plugin {framework.plugin!r}: {dict(plugins.broken) or 'nothing of that name is installed'}; "
            "install the distribution whose pyproject.toml has [project.entry-points.lightning_core]",
            pytrace=False,
        )
    if "lightning_who" not in hooks[framework.plugin]:
        pytest.fail(
            f"plugin {framework.plugin!r} has no lightning_who, only {hooks[framework.plugin]}; "
            "mark it with @lightning_core.hookimpl",
            pytrace=False,
        )


def test_loading_and_asking_it_imports_no_framework(framework: Framework) -> None:
    program = _ASK.format(plugin=framework.plugin, heavy={*framework.modules, "openai"})
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
