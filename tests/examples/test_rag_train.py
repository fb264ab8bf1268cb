"""The training script on a folder in MuSiQue's layout, as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.examples.test_rag_musique import musique

ROOT = Path(__file__).parents[2]
__all__ = ["musique"]


def test_the_script_asks_the_questions_of_a_folder_in_musique_s_layout(musique, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "lightning_core.cli", "train", str(ROOT / "examples/rag/train.py")]
    done = subprocess.run(
        [*command, "--steps", "0", "--folder", str(folder), "--", "--data", str(musique)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    evaluation = summary["before"]["detail"]["greedy"]
    assert (evaluation["tasks"], evaluation["failures"]) == (1, 0)
    assert list(evaluation["by"]) == ["2hop"]
    assert list(evaluation["agents"]) == ["researcher"]
