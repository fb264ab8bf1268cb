"""An SDK is instrumented when the app imports it, and never imported by us."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATE = """
import sys
from lightning_core.tracing.openai_sdk import instrument

finders = len(sys.meta_path)
first, second = instrument(lambda: None), instrument(lambda: None)
assert "openai" not in sys.modules, "imported by us"
from openai._base_client import BaseClient
assert hasattr(BaseClient._build_request, "__wrapped__"), "not wrapped"
assert not hasattr(BaseClient._build_request.__wrapped__, "__wrapped__"), "wrapped twice"
first.uninstall(), second.uninstall()
assert not hasattr(BaseClient._build_request, "__wrapped__"), "not restored"
assert len(sys.meta_path) == finders
"""

NEVER = """
import sys
from lightning_core.tracing.openai_sdk import instrument

instrument(lambda: None).uninstall()
from openai._base_client import BaseClient
assert not hasattr(BaseClient._build_request, "__wrapped__")
"""

REFUSED = """
from lightning_core.errors import InstrumentationError
from lightning_core.tracing import observed, openai_sdk

{place}
openai_sdk.instrument(lambda: None)
try:
    import {module}
except InstrumentationError as error:
    assert "{named}" in str(error), error
else:
    raise AssertionError("silence")
"""


def test_an_app_that_imports_openai_later_is_tagged() -> None:
    run(LATE)


def test_an_import_after_uninstall_is_left_alone() -> None:
    run(NEVER)


@pytest.mark.parametrize(
    ("place", "module", "named"),
    [
        ("openai_sdk._NEEDED = ('_gone',)", "openai", "openai._base_client.BaseClient._gone"),
        ("openai_sdk._NEEDED = ('_gone',)", "anthropic", "anthropic._base_client.BaseClient._gone"),
        ("observed._NEEDED = ('Client.gone',)", "openai", "'Client.gone'"),
    ],
)
def test_a_missing_choke_point_is_an_error_at_the_apps_import(place: str, module: str, named: str) -> None:
    pytest.importorskip(module)
    run(REFUSED.format(place=place, module=module, named=named))


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
