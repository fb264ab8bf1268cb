"""`agentlightning train --set workers=N`: a user's own script, with clients that can't be pickled."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_cli import SCRIPT, run


def test_a_script_trains_with_its_rollouts_in_worker_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--set", "workers=2", "--steps", 1, "--folder", folder)
    done = run("train", SCRIPT, *options)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["failures"]) == (1, 0)
    assert summary["agents"]["writer"]["trained"] is True
    assert summary["agents"]["critic"]["calls"] == 8
