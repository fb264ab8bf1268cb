"""openai is instrumented when the app imports it, and never imported by us."""

from __future__ import annotations

import subprocess
import sys

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
import sys
from lightning_core.errors import InstrumentationError
from lightning_core.tracing import openai_sdk

openai_sdk._NEEDED = ("_gone",)
openai_sdk.instrument(lambda: None)
try:
    import openai
except InstrumentationError as error:
    assert "BaseClient._gone" in str(error)
else:
    raise AssertionError("silence")
"""


def test_an_app_that_imports_openai_later_is_tagged() -> None:
    run(LATE)


def test_an_import_after_uninstall_is_left_alone() -> None:
    run(NEVER)


def test_a_missing_choke_point_is_an_error_at_the_apps_import() -> None:
    run(REFUSED)


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
