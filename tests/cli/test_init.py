"""The files of `agentlightning init` run as they are, in every framework and language."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_core import plugins
from lightning_core.cli.app import app
from lightning_core.cli.starting import PROGRAMS, TOOLS, Starter, read_starter
from lightning_core.errors import ConfigError
from lightning_core.plugins import find_clone, install_command
from lightning_core.records.types import Call
from lightning_core.stores.sqlite import SqliteStore

BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
SMALL = """
from pathlib import Path
import lightning_core as lightning
from lightning_core.cli.training import train_script
from lightning_core.trainer.launch import Launch

small = lightning.GRPO(group_size=2, tasks_per_step=1)
settings = {"steps": 1, "algorithm": small, "model": "tiny", "folder": "run", "progress": False}
train_script(Path("train.py"), [], Launch(settings))
"""


@pytest.mark.parametrize("starter", Starter)
def test_what_is_written_trains_the_agents_that_it_names(starter: Starter, tmp_path: Path) -> None:
    pytest.importorskip(starter.module)
    if missing := [tool for tool in TOOLS.get(starter, ()) if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {missing}")
    written = CliRunner().invoke(app, ["init", starter, str(tmp_path / "app")])
    assert written.exit_code == 0, written.output
    folder = tmp_path / "app"
    tasks = (folder / "tasks.jsonl").read_text().splitlines()
    (folder / "tasks.jsonl").write_text("\n".join([tasks[0], tasks[1], tasks[-1]]))
    free = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    ended = subprocess.run(
        [sys.executable, "-c", SMALL], cwd=folder, env=free, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    agents = ["check", "triage"] if starter is Starter.TWO_AGENTS else ["triage"]
    assert sorted(summary["agents"]) == agents
    assert "failed" not in ended.stderr
    bounds = [{name: call.request[name] for name in BOUNDS if name in call.request} for call in calls(folder)]
    assert bounds
    assert all(list(each.values()) == [256] for each in bounds), bounds


def calls(folder: Path) -> list[Call]:
    """All calls of its run."""

    async def read() -> list[Call]:
        async with SqliteStore(f"sqlite:///{folder / 'run' / 'store.db'}") as store:
            found = await store.get_calls([rollout.id for rollout in await store.find_rollouts("run")])
            return [call for some in found.values() for call in some]

    return asyncio.run(read())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    refused = CliRunner().invoke(app, ["init", "plain", str(tmp_path)])
    assert isinstance(refused.exception, ConfigError)
    assert "app.py would be overwritten" in str(refused.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]


def test_the_apps_know_nothing_of_this_project_and_share_one_script() -> None:
    for starter in Starter:
        files = read_starter(starter)
        assert not [name for name in files if name != "train.py" and "lightning" in files[name].lower()]
        named = {line.strip() for line in files["train.py"].splitlines() if "lightning.a" in line}
        assert (named != set()) == (starter in {Starter.PLAIN, Starter.PYDANTIC_AI, Starter.SMOLAGENTS})
        assert ("lightning.Command([" in files["train.py"]) == (starter in PROGRAMS)
        compile(files["train.py"], "train.py", "exec")


def test_what_is_missing_is_installed_from_where_the_core_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in the message works while the packages are on no index."""
    clone = find_clone()
    assert clone is not None  # as `make` installs it
    assert (clone / "plugins" / "langgraph").is_dir()
    assert install_command("langgraph", extras=["langgraph", "smollm2"]) == (
        f'pip install "{clone}[langgraph,smollm2]" {clone}/plugins/langgraph'
    )
    monkeypatch.setattr(plugins, "find_clone", lambda: None)
    assert install_command("langgraph", extras=["langgraph"]) == (
        'pip install "agent-lightning-core[langgraph]"'
    )
    assert install_command("google_adk") == "pip install lightning-google-adk"


def test_tasks_are_read_as_other_programs_write_them(tmp_path: Path) -> None:
    """With a byte order mark, lines that end as on Windows, and rare breaks of lines within a text."""
    for name, text in read_starter(Starter.PLAIN).items():
        (tmp_path / name).write_text(text)
    said = ["one\u2028more\u0085line", "two"]
    lines = "\r\n".join(json.dumps({"message": each}, ensure_ascii=False) for each in said)
    (tmp_path / "own.jsonl").write_text(f"\ufeff{lines}\r\n\r\n", encoding="utf-8", newline="")
    (tmp_path / "own.csv").write_text("\ufeffmessage\r\n" + "\r\n".join(said), encoding="utf-8", newline="")
    read = "import json, train; print(json.dumps([*map(train.read_tasks, ('own.jsonl', 'own.csv'))]))"
    told = subprocess.run([sys.executable, "-c", read], cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == [[{"message": each} for each in said]] * 2


def test_a_line_that_is_no_task_is_named(tmp_path: Path) -> None:
    for name, text in read_starter(Starter.PLAIN).items():
        (tmp_path / name).write_text(text)
    for line, why in (('{"message": "one" "team"}', "Expecting ',' delimiter"), ("7", "'int' object")):
        (tmp_path / "own.jsonl").write_text(f'{{"message": "one"}}\n\n{line}\n')
        read = "import train; train.read_tasks('own.jsonl')"
        told = subprocess.run([sys.executable, "-c", read], cwd=tmp_path, capture_output=True, text=True)
        assert told.returncode == 1
        assert told.stderr.startswith(f"own.jsonl:3: {why}"), told.stderr


def test_tasks_are_of_each_team_and_none_is_in_both_splits() -> None:
    rows = [json.loads(line) for line in read_starter(Starter.PLAIN)["tasks.jsonl"].splitlines()]
    assert len({row["message"] for row in rows}) == len(rows)
    for split in ("train", "validation"):
        teams = [row["team"] for row in rows if row["split"] == split]
        assert {teams.count(team) for team in ("billing", "shipping", "account")} == {len(teams) // 3}
        assert len(teams) >= 18
