"""`agentlightning train --executor`: a user's own script, with clients that can't be pickled, elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_cli import SCRIPT, run


def test_a_script_trains_with_its_rollouts_in_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--executor", "processes", "--concurrency", 2, "--steps", 1, "--folder", folder)
    done = run("train", SCRIPT, *options)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["failures"]) == (1, 0)
    assert summary["agents"]["writer"]["trained"] is True
    assert summary["agents"]["critic"]["calls"] == 8


def test_a_script_without_a_guard_whose_function_can_t_go_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    text = SCRIPT.read_text().replace('if __name__ == "__main__":', "if True:")
    script.write_text(text)
    done = run("train", script, "--executor", "processes", "--steps", 1, "--folder", tmp_path / "run")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "its global 'client' of 'solve', a openai.AsyncOpenAI," in said
    assert 'Put the script\'s call of Trainer.fit under `if __name__ == "__main__":`' in said


def test_an_unknown_executor_is_refused_by_name(tmp_path: Path) -> None:
    done = run("train", SCRIPT, "--executor", "proceses", "--folder", tmp_path / "run")
    assert done.returncode == 1
    assert "no executor is called 'proceses' (did you mean 'processes'?)" in " ".join(done.stderr.split())
