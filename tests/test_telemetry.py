"""With DO_NOT_TRACK=1 nothing that runs here reports to its maker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from lightning_core.telemetry import VARIABLES, switches

ROOT = Path(__file__).parent.parent
WATCH = """
import os, sys

def note(event, arguments):
    if event == "socket.getaddrinfo":
        place = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        place = arguments[1][0]
    else:
        return
    place = place.decode() if isinstance(place, bytes) else place
    if place not in (None, "", "localhost", "::1") and not place.startswith("127."):
        with open(os.environ["PLACES"], "a") as file:
            file.write(place + "\\n")
        raise OSError(f"{place} is kept from this test")

sys.addaudithook(note)
"""
CREW = """
from crewai import LLM, Agent, Crew, Task

llm = LLM(model="gpt-4o", api_key="none", max_tokens=8, is_litellm=False)


def make_crew():
    agent = Agent(role="writer", goal="Answer.", backstory="You know sums.", llm=llm, max_iter=1)
    return Crew(agents=[agent], tasks=[Task(description="Go.", expected_output="A word.", agent=agent)])
"""
TRAIN = """
import lightning_core as lightning
from app import make_crew
from lightning_crewai import attach


async def solve(task):
    await attach(make_crew()).akickoff()
    return 1.0


lightning.Trainer(model="tiny", steps=0, progress=False).fit(solve, validation=[{"question": "?"}])
"""
RAY = """
import os, sys, time, warnings
from pathlib import Path

from lightning_core import telemetry

telemetry.obey()
warnings.simplefilter("ignore")
import ray

ray.init("local", num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
log = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs" / "dashboard.log"
while not ("Usage reporting is" in log.read_text() if log.exists() else False):
    time.sleep(0.2)
print(log.read_text())
"""


def clean(**added: str) -> dict[str, str]:
    """This process's environment without any switch."""
    kept = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "DO_NOT_TRACK")}
    return {**kept, "OMP_NUM_THREADS": "1", **added}


def places(folder: Path, *arguments: str, succeeds: bool, **switch: str) -> set[str]:
    """Where a Python process, and what it starts, tries to connect beyond this machine."""
    for name, code in (("sitecustomize", WATCH), ("app", CREW), ("train", TRAIN)):
        (folder / f"{name}.py").write_text(code)
    paths = [str(folder), *(path for path in sys.path if path)]
    environment = clean(
        PLACES=str(folder / "places"),
        PYTHONPATH=os.pathsep.join(paths),
        CREWAI_STORAGE_DIR=str(folder / "crewai"),
        HOME=str(folder),
        **switch,
    )
    for name in ("CI", "OPENAI_API_KEY", "OPENAI_BASE_URL", "CREWAI_TESTING"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert (done.returncode == 0) == succeeds, done.stderr
    return set((folder / "places").read_text().split()) if (folder / "places").exists() else set()


def test_a_crew_that_is_trained_here_connects_to_nobody_else(tmp_path: Path) -> None:
    train = ("-m", "lightning_core.cli", "train", "train.py", "--folder", "run")
    assert places(tmp_path, *train, succeeds=True, DO_NOT_TRACK="1") == set()
    assert '"failures": 0' in (tmp_path / "run" / "summary.json").read_text()


def test_a_crew_reports_to_its_framework_s_maker_unless_that_is_turned_off(tmp_path: Path) -> None:
    kickoff = ("-c", "from app import make_crew; make_crew().kickoff()")
    assert "telemetry.crewai.com" in places(tmp_path, *kickoff, succeeds=False)


def test_a_cluster_of_ray_that_is_begun_here_sends_no_report(tmp_path: Path) -> None:
    environment = clean(
        PYTHONPATH=str(ROOT), RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", HOME=str(tmp_path), DO_NOT_TRACK="1"
    )
    # Ray's sockets lie in its folder, and a socket's path has 107 bytes at most: pytest's folder is too deep.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        done = subprocess.run(
            [sys.executable, "-c", RAY, folder], env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert "Usage reporting is disabled" in done.stdout


def test_what_the_user_has_set_is_left_as_it_is() -> None:
    assert switches({}) == switches({"DO_NOT_TRACK": "0"}) == switches({"DO_NOT_TRACK": "false"}) == {}
    assert switches({"DO_NOT_TRACK": "1"}) == switches({"DO_NOT_TRACK": "true"}) == dict(VARIABLES)
    mine = {"DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "1"}
    assert switches(mine).keys() == VARIABLES.keys() - {"RAY_USAGE_STATS_ENABLED"}


def test_the_page_names_every_variable() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text()
    assert dict(re.findall(r"`([A-Z_]+)=(\w+)` \|", page)) == dict(VARIABLES)


def test_the_libraries_that_are_installed_understand_their_variables() -> None:
    asked = (
        "import huggingface_hub.constants as hub, mlflow.environment_variables as mlflow\n"
        "import wandb.env as wandb\n"
        "from agents.tracing import get_trace_provider\n"
        "from crewai_core.telemetry import Telemetry\n"
        "from crewai.events.listeners.tracing.utils import should_enable_tracing\n"
        "from ray._common.usage import usage_lib as ray\n"
        "provider = get_trace_provider(); provider._refresh_disabled_flag()\n"
        "print(hub.HF_HUB_DISABLE_TELEMETRY, mlflow.MLFLOW_DISABLE_TELEMETRY.get(), "
        "not wandb.error_reporting_enabled(), provider._disabled, Telemetry._is_telemetry_disabled(), "
        "not should_enable_tracing(), not ray.usage_stats_enabled())\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", asked],
            env=clean(**switch),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for switch in (dict(VARIABLES), {})
    ]
    assert said[0] == ["True"] * 7
    assert said[1] == ["False"] * 5 + ["True", "False"]  # CrewAI sends traces to those alone who agreed
