"""`agentlightning try`, `why`, `whatif` and `report`, on the small job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightning_core.cli import main

SCRIPT = Path(__file__).parent / "small_job.py"


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The command in this process and in an empty folder; returns its status and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["agentlightning", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return call


def test_try_shows_calls_and_rewards_and_keeps_nothing(call, tmp_path):
    status, said = call("try", SCRIPT, "--tasks", 2)
    assert status == 0, said
    assert said.count("writer") >= 4  # two tasks, each sampled and greedy
    assert "reward" in said
    assert "nothing was trained or kept" in said
    assert list(tmp_path.iterdir()) == []


def test_a_trained_run_is_asked_why_and_what_if(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", SCRIPT, "--folder", run, "--steps", 1)[0] == 0
    status, said = call("why", run, "worst")
    assert status == 0, said
    assert "advantage" in said
    status, said = call("whatif", run, "--step", 1, "--baseline", "none", "--scale", "none")
    assert status == 0, said
    assert "calls would get another advantage" in said
    assert "give --credit" in call("whatif", run)[1]
    assert "--scale 'ten' is none of" in call("whatif", run, "--scale", "ten")[1]
    (run / "report.html").unlink()
    assert call("report", run)[0] == 0
    assert (run / "report.html").stat().st_size > 10_000


def test_rollouts_are_found_by_a_field_of_their_task(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", SCRIPT, "--folder", run, "--steps", 0)[0] == 0
    question = "List the boats with speed above 7."
    status, said = call("show", run, "--where", f"question={question}")
    assert (status, "2 rollouts" in said) == (0, True), (
        said
    )  # one of three held-out tasks, sampled and greedy
    status, said = call("show", run, "--where", "kind=sold")
    assert (status, "the tasks have question" in said) == (1, True), said
