"""Apps of the shapes that others have written run as they are, and none of their calls is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.apps.__main__ import PAGE, modules

APPS = modules()
Rows = dict[str, dict[str, Any]]


def run(folder: Path, *options: str) -> Rows:
    """All apps, in a process of their own."""
    out = folder / "rows.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.apps", "--out", str(out), *options],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert out.exists(), done.stderr
    return {row["module"]: row for row in json.loads(out.read_text())}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return run(tmp_path_factory.mktemp("scripted"))


@pytest.mark.parametrize("app", APPS)
def test_an_app_runs_to_its_end_with_every_call_recorded_under_its_agents_name(
    scripted: Rows, app: str
) -> None:
    row = scripted[app]
    assert (row["error"], row["unexpected"], row["wrong"], row["refused"]) == ("", "", [], [])
    assert (row["runs"], row["noticed"], row["lost"]) == (True, 0, 0)


@pytest.mark.parametrize("app", APPS)
def test_an_app_makes_the_same_calls_again_with_the_replies_on_record(scripted: Rows, app: str) -> None:
    assert scripted[app]["again"] == ""


def test_the_page_has_the_table_of_these_apps(scripted: Rows) -> None:
    for row in scripted.values():
        line = f"| {row['name']} | {row['framework']} | yes | {row['right']} of {row['right']} |"
        assert f"{line} {row['right']} / 0 / 0 |" in PAGE.read_text()
