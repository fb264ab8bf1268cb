"""The command as a person uses it: real processes, a real model, real signals."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

import lightning_core
from lightning_core.cli.training import read_launch
from tests.build import agentlightning

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "small_job.py"
COMMAND = [sys.executable, "-m", "lightning_core.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}


def run(*arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=800,
    )


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command in this process, run in an empty folder unless `cwd` says another."""
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")

    def call(*arguments: object, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        status = agentlightning(*arguments)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a finished run, and what training said."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    done = run("train", SCRIPT, "--folder", folder, "--set", "seed=5")
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_train_leaves_a_policy_a_summary_and_a_curve(finished):
    folder, said = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["seed"], summary["steps"], summary["failures"]) == (5, 3, 0)
    for part in ("before", "after"):
        assert {"sampled", "greedy"} <= summary[part].keys()
    assert summary["train_seconds"] > 0
    assert summary["agents"]["writer"]["trained"] is True
    writer, critic = summary["agents"]["writer"], summary["agents"]["critic"]
    assert (critic["trained"], critic["calls"], critic["transitions_with_advantage"]) == (False, 24, 0)
    assert (writer["credit"], critic["credit"]) == (1.0, 0.0)
    assert summary["versions"]["torch"]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "policy" / "model.safetensors").exists()
    assert "held-out reward" in said
    assert str(folder / "policy") in said.replace("\n", "")


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path, call):
    told = call("train", SCRIPT, "--dry-run", "--steps", 7)
    assert told.returncode == 0, told.stderr
    assert re.search(r"a step\s+│ 8 rollouts: 2 tasks, 4 of each", told.stdout)
    assert "7 updates" in told.stdout
    assert "every check that can be made here holds" in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_the_page_about_dry_runs_work_as_they_stand(call):
    page = (ROOT / "docs" / "dry-run.md").read_text()
    commands = re.findall(r"^\$ agentlightning (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        told = call(*command.split(), cwd=ROOT)
        assert "nothing was started or written" in told.stdout, told.stderr
        assert told.returncode == ("would fail" in told.stdout)  # there is no model in /models


def test_runs_and_show_report_what_training_left(finished):
    folder, _ = finished
    listed = run("runs", folder.parent)
    assert re.search(r"small +finished +3 +.+ → .+ +\d+ MiB ", listed.stdout), listed.stdout
    shown = run("show", folder)
    assert "Exported after update" in shown.stdout
    assert "3 steps" in shown.stdout
    assert re.search(r"writer\s+yes", shown.stdout)
    assert re.search(r"critic\s+no", shown.stdout)


def test_a_folder_that_holds_a_run_is_not_overwritten(finished, call):
    folder, _ = finished
    again = call("train", SCRIPT, "--folder", folder)
    assert again.returncode == 1
    assert "already holds a run" in again.stderr


def test_resuming_with_another_seed_is_refused(finished, call):
    folder, _ = finished
    other = call("train", SCRIPT, "--folder", folder, "--resume", "--set", "seed=6")
    assert other.returncode == 1
    assert "differ from before: seed" in other.stderr


def test_a_setting_is_read_as_json_as_python_or_as_text():
    given = ["air=False", "progress=true", "timeout=None", "steps=3", "model=tiny", "backend.lora=True"]
    given.append("algorithm.entropy=0.1")
    launch = read_launch(given, {})
    assert launch.settings == {"air": False, "progress": True, "timeout": None, "steps": 3, "model": "tiny"}
    assert (launch.backend, launch.algorithm) == ({"lora": True}, {"entropy": 0.1})


def test_an_agent_nobody_has_seen_is_an_error_with_the_names_seen(tmp_path, call):
    wrong = call("train", SCRIPT, "--folder", tmp_path / "run", "--set", 'agents=["writr","critic"]')
    assert wrong.returncode == 1
    assert "'writr'" in wrong.stderr
    assert "'critic', 'writer'" in wrong.stderr


def test_an_app_that_always_fails_stops_the_run_and_says_why(tmp_path, call, monkeypatch):
    monkeypatch.setenv("SMALL_JOB_FAILS", "1")
    broken = call("train", SCRIPT, "--folder", tmp_path / "run")
    assert broken.returncode == 1
    assert "TrainingError" in broken.stderr
    assert "the app is broken today" in broken.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nowhere.py"], "nowhere.py"),
        (["train", SCRIPT, "--set", "model=/nowhere/model"], "/nowhere/model"),
        (["train", SCRIPT, "--set", "backend=gpu"], "gpu"),
        (["train", SCRIPT, "--store", "mysql://x"], "mysql"),
        (["train", SCRIPT, "--resume", "--folder", "nowhere"], "nowhere"),
        (["train", SCRIPT, "--steps", "-1"], "steps"),
        (["train", SCRIPT, "--set", "backend.address=auto"], "backend 'local' has no setting 'address'"),
        (["train", SCRIPT, "--set", 'algorithm={"name": "grpo"}'], "--set algorithm.NAME=VALUE"),
        (["show", "nowhere"], "nowhere"),
        (["serve", "--listen", "127.0.0.1:99999"], "listen='127.0.0.1:99999': give HOST:PORT"),
        (["train", SCRIPT, "--set", "listen=127.0.0.1:65536"], "listen='127.0.0.1:65536': give HOST:PORT"),
    ],
)
def test_bad_input_is_one_message_that_names_it(arguments, words, call):
    refused = call(*arguments)
    assert refused.returncode == 1
    assert words in refused.stderr


def test_a_console_takes_no_port_that_there_is_not(call):
    refused = call("console", "--port", "99999")
    assert refused.returncode == 2
    assert "'--port'" in refused.stderr
    assert "65535" in refused.stderr


def test_ctrl_c_is_clean_and_resume_goes_on(tmp_path):
    script, folder = tmp_path / "job.py", tmp_path / "out" / "mine"
    script.write_text(SCRIPT.read_text().replace("Trainer(", "Trainer(folder='out/mine', ", 1))
    arguments = [*COMMAND, "train", str(script), "--steps", "300"]
    # a shell that starts the tests in the background lets them ignore Ctrl-C, and what they start as well
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, preexec_fn=heed
    ) as process:
        while not list((folder / "checkpoints").glob("step-*")):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"--resume --folder {folder}" in said
    assert "Traceback" not in said
    made = max(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
    resumed = run("train", script, "--resume", "--steps", made + 2, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming after step {made}" in resumed.stderr
    assert json.loads((folder / "summary.json").read_text())["steps"] == made + 2
    again = run("train", script, "--resume", "--steps", made + 2, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"all {made + 2} steps are done, nothing is trained" in again.stderr


def test_sigterm_ends_a_process_that_ignores_ctrl_c_in_order(tmp_path):
    folder = tmp_path / "run"
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with subprocess.Popen(
        [*COMMAND, "train", str(SCRIPT), "--steps", "300", "--folder", str(folder)],
        env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, preexec_fn=ignore,
    ) as process:  # fmt: skip
        while not list((folder / "checkpoints").glob("step-*")):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None, "Ctrl-C does not reach a job in the background"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert f"started in the background; end it with: kill {process.pid}" in said
    assert "stopped; to continue, add --resume" in said
    assert "Traceback" not in said
    rows = [line.split()[:2] for line in run("runs", tmp_path).stdout.splitlines()]
    assert ["run", "stopped"] in rows


def test_serve_answers_any_openai_client(tmp_path):
    with subprocess.Popen(
        [*COMMAND, "serve", "--listen", "127.0.0.1:0"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        url = ""
        while not url:
            line = process.stderr.readline()
            assert line, "serve ended before it said where it listens"
            found = re.search(r"OPENAI_BASE_URL=(\S+)", line)
            url = found[1] if found else ""
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
            reply = client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=4
            )
            assert reply.usage.completion_tokens <= 4
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_it_says_its_version():
    assert run("--version").stdout == f"{lightning_core.__version__}\n"


def test_a_package_that_training_here_needs_is_named_with_what_to_install(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(f"import sys\nsys.modules['safetensors'] = None\n{SCRIPT.read_text()}")
    without = run("train", script, cwd=tmp_path)
    assert without.returncode == 1
    assert "needs the package 'safetensors': pip install 'agent-lightning-core[local]'" in without.stderr


def test_plugins_lists_what_is_installed():
    listed = run("plugins")
    assert re.search(r"langgraph .* lightning_attach, lightning_install, lightning_who", listed.stdout), (
        listed.stdout
    )


@pytest.mark.parametrize(
    "verb", ["train", "serve", "gateway", "models", "runs", "show", "sync", "plugins", "api", "token"]
)
def test_every_verb_explains_itself(verb, call):
    told = call(verb, "--help")
    assert told.returncode == 0
    assert len(told.stdout) > 200
