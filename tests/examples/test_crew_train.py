"""The training script of examples/crew: a real crew, the real policy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("crewai")
pytest.importorskip("lightning_crewai")

import lightning_core as lightning
from examples.crew import train
from lightning_core.records.types import Call, Rollout
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.launch import Launch, launching

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of CrewAI's own fields


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of the script."""
    place = tmp_path_factory.mktemp("crew")
    small = lightning.GRPO(group_size=4, tasks_per_step=4)
    settings = {"steps": 1, "algorithm": small, "folder": place / "seed0", "progress": False}
    with pytest.MonkeyPatch.context() as patch, launching(Launch(settings)):
        patch.chdir(place)
        patch.delenv("OPENAI_API_KEY", raising=False)
        patch.delenv("OPENAI_BASE_URL", raising=False)
        patch.setattr(sys, "argv", ["train.py", "--held-out-tasks", "4"])
        train.main()
    return place / "seed0"


def test_the_writer_is_trained_and_the_reviewer_is_only_recorded(finished: Path) -> None:
    calls, _ = asyncio.run(recorded(finished))
    assert {(call.agent, call.trained) for call in calls} == {("SQL writer", True), ("SQL reviewer", False)}


def test_each_call_is_recorded_under_its_own_rollout_and_role(finished: Path) -> None:
    calls, rollouts = asyncio.run(recorded(finished))
    questions = {rollout.id: str(rollout.task.input["question"]) for rollout in rollouts}
    for call in calls:
        system, user = (str(message["content"]) for message in call.request["messages"])
        assert f"You are {call.agent}." in system
        assert f"Question: {questions[call.rollout_id or '']}\n" in user


async def recorded(folder: Path) -> tuple[list[Call], list[Rollout]]:
    """All calls and rollouts of the run's training."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        rollouts = await store.find_rollouts("seed0", split="train")
        of_rollout = await store.get_calls([rollout.id for rollout in rollouts])
    return [call for made in of_rollout.values() for call in made], rollouts


def test_importing_the_script_starts_no_thread_and_leaves_ctrl_c_alone(tmp_path: Path) -> None:
    look = (
        "import signal, threading\n"
        "handlers = [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))]\n"
        "import examples.crew.train\n"
        "assert [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))] == handlers\n"
        "assert threading.enumerate() == [threading.main_thread()], threading.enumerate()\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CREWAI_")}
    env = {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr


def test_the_app_knows_nothing_of_the_project_and_the_script_adds_one_line() -> None:
    app, script = ((ROOT / "examples/crew" / name).read_text() for name in ("app.py", "train.py"))
    assert "lightning" not in app.lower()
    assert [line.strip() for line in script.splitlines() if "attach(" in line] == ["attach(crew)"]
    assert script.count("agents=[") == 1
