"""The training script on a folder in Spider's layout, as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.examples.test_sql_spider import spider

ROOT = Path(__file__).parents[2]
__all__ = ["spider"]


def test_the_script_trains_on_a_folder_in_spider_s_layout(spider, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "lightning_core.cli", "train", "examples/sql/train.py", "--steps", "1"]
    done = subprocess.run(
        [*command, "--folder", str(folder), "--", "--data", str(spider)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rollouts"] == 64
    assert summary["agents"]["write_query"]["trained"] is True
    assert summary["agents"]["check_query"]["trained"] is False
    assert list(summary["after"]["detail"]["greedy"]["by"]) == ["spider"]
