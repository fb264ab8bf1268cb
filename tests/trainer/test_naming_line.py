"""Which line names the calls of a framework that is in use without its plugin."""

from importlib.util import find_spec

import pytest

from lightning_core.plugins import install_command
from lightning_core.trainer.loop import naming_line


@pytest.mark.skipif(find_spec("lightning_google_adk") is not None, reason="its plugin is installed here")
def test_the_plugin_and_the_spans_are_named():
    said = naming_line({"google.adk", "strands"}) or ""
    assert f"google.adk: {install_command('google_adk')}" in said
    assert "trace.set_tracer_provider(TracerProvider())" in said


def test_strands_has_spans_and_an_unknown_framework_nothing():
    assert "Strands then makes spans" in (naming_line({"strands"}) or "")
    assert naming_line({"agno"}) is None
