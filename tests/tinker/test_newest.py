"""The newest client takes what the backend gives it; no server that can be run here speaks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="Tinker's client lives in an environment of its own: make test-tinker")

from tests.jobs import ROOT

NEWEST = Path(sys.prefix) / "newest"
"""Where `make` puts it, beside the client that the server speaks to."""


@pytest.mark.skipif(not NEWEST.is_dir(), reason="made by make test-tinker")
def test_what_is_sent_has_its_place_in_the_newest_client_and_nothing_in_it_is_about_to_go() -> None:
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("newest.py"))]
    path = os.pathsep.join([str(NEWEST), str(ROOT)])
    said = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert (NEWEST / f"tinker-{said.stdout}.dist-info").is_dir()
