"""A real run told to the real TensorBoard, W&B and MLflow, read back with their own readers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.alerts.watch import Finding, Scene
from lightning_core.cli.sending import sync_tensorboard
from lightning_core.errors import ConfigError
from lightning_core.records.types import Metrics, Run
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trackers.base import Beginning
from lightning_core.trackers.mlflow import MLflow
from lightning_core.trackers.tensorboard import TensorBoard, find_earlier
from tests.trackers.reading import scalars, texts, wandb_records, wandb_rows
from tests.trainer.watching import grpo, solve

STEPS = 3
TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(7)]
JOB = """
import sys
from pathlib import Path
from lightning_core.trackers.base import Beginning, Feed
from lightning_core.trackers.wandb import Wandb
from lightning_core.records.types import Alert, Run

run = Run(id="small", folder=sys.argv[1], created_at=1.0, provenance={"seed": 7})
for first in (0, 2):
    tracker = Wandb("trial", mode="offline")
    tracker.start(Beginning(run, resumed=first > 0))
    for step in (first + 1, first + 2):
        tracker.log(step, {"reward": step / 8, "agent/writer/calls": 3.0}, 2.0)
    tracker.alert(Alert(run_id="small", id="a", rule="rule", level="critical", message="look"))
    tracker.finish("finished")
print([child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()])
"""
"""Tells W&B of a run that is resumed after its second step, and ends with the processes that are left."""


def second(scene: Scene) -> list[Finding]:
    """Finds the second step."""
    return [Finding("the second step")] if scene.step == 1 else []


async def solve_any(task: lightning.Task) -> float:
    """Evaluations have no place in a group."""
    scope = current_scope()
    assert scope is not None
    return 0.5 if "-e" in scope.rollout_id else await solve(task)


def fit_tracked(folder: Path, **settings: Any) -> None:
    lightning.Trainer(
        agents=["writer"],
        algorithm=grpo(),
        backend=lightning.LocalBackend("tiny"),
        alerts=lightning.Alerts(rules={"second": second}),
        folder=folder,
        progress=False,
        **settings,
    ).fit(solve_any, train=TASKS, validation=TASKS[:1])


def metrics(folder: Path) -> list[Metrics]:
    async def read() -> list[Metrics]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            return await store.list_metrics(folder.name)

    return asyncio.run(read())


def expected(folder: Path, name: str) -> list[tuple[int, Any]]:
    """In single precision, which is what TensorBoard keeps."""
    return [
        (entry.step + 1, pytest.approx(entry.values[name], rel=1e-6, abs=1e-6)) for entry in metrics(folder)
    ]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of three steps, resumed after the second, told to TensorBoard and MLflow."""
    folder = tmp_path_factory.mktemp("runs") / "tracked"
    uri = (folder.parent / "mlflow").as_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny comes without a database
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        for steps, resume in ((2, False), (STEPS, True)):
            trackers = ["tensorboard", MLflow("trial", tracking_uri=uri)]
            fit_tracked(folder, steps=steps, resume=resume, trackers=trackers)
        from mlflow import MlflowClient

        yield SimpleNamespace(folder=folder, mlflow=MlflowClient(tracking_uri=uri))


def test_tensorboard_has_every_step_once_and_what_the_run_is(tracked):
    files = tracked.folder / "tensorboard"
    for name in ("reward", "grad_norm", "agent/writer/calls"):
        assert scalars(files, name) == expected(tracked.folder, name)
    ((step, said),) = texts(files, "run")
    assert step == 0
    assert json.loads(said.removeprefix("```json\n").removesuffix("\n```"))["seed"] == 0
    assert texts(files, "alerts/second") == [(2, "**warning**: the second step")]


def test_mlflow_has_one_run_with_every_step_its_settings_and_its_end(tracked):
    client = tracked.mlflow
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward")
    assert [(each.step, round(each.value, 6)) for each in history] == expected(tracked.folder, "reward")
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "0"
    assert run.data.params["settings.steps"] == "2"
    assert run.data.tags["alert.second/step-1"] == "the second step"


def test_an_export_has_the_same_and_a_second_one_takes_its_place(tracked, tmp_path):
    for _ in range(2):
        asyncio.run(sync_tensorboard(tracked.folder, tmp_path))
    assert len(list(tmp_path.glob("events.*"))) == 1
    for name in ("reward", "step_seconds"):
        assert scalars(tmp_path, name) == expected(tracked.folder, name)
    assert texts(tmp_path, "alerts/second") == [(2, "**warning**: the second step")]
    evaluations = [(0, 0.5), (2, 0.5), (3, 0.5)]
    assert scalars(tmp_path, "validation/greedy") == evaluations
    assert scalars(tracked.folder / "tensorboard", "validation/sampled") == evaluations


async def test_an_export_to_a_file_is_refused(tmp_path):
    async with SqliteStore(f"sqlite:///{tmp_path / 'store.db'}") as store:
        await store.put_run(Run(id="run"))
    (tmp_path / "run.json").write_text('{"run": "run", "store": null}')
    for target in (tmp_path / "store.db", tmp_path / "run.json" / "logs"):
        with pytest.raises(ConfigError, match=f"can't write into '{target}'"):
            await sync_tensorboard(tmp_path, target)


def test_a_run_leaves_the_files_of_a_run_alone_whose_name_ends_like_its_own(tmp_path):
    names = ["0.1", "1", "x.0.1", "a/b", "%2E1"]
    for again in range(2):
        for name in names:
            tracker = TensorBoard(tmp_path)
            tracker.start(Beginning(Run(id=name)))
            tracker.log(1, {"reward": 0.5}, 1.0)
            tracker.finish("finished")
            assert len(find_earlier(tmp_path, name)) == 1, (again, name)
    assert len(list(tmp_path.glob("events.*"))) == len(names)


async def test_an_export_leaves_alone_what_a_living_trainer_writes(tmp_path):
    async with SqliteStore(f"sqlite:///{tmp_path / 'store.db'}") as store:
        run = Run(id="run", folder=str(tmp_path))
        await store.put_run(run)
        (tmp_path / "run.json").write_text('{"run": "run", "store": null}')
        live = TensorBoard(tmp_path / "tensorboard")
        live.start(Beginning(run))
        async with Heartbeat(store, make_member("run", "trainer", "trainer")):
            with pytest.raises(ConfigError, match=r"is being trained, and .* holds event files of it"):
                await sync_tensorboard(tmp_path, tmp_path / "tensorboard")
            await sync_tensorboard(tmp_path, tmp_path / "elsewhere")
        live.finish("stopped")
        assert find_earlier(tmp_path / "tensorboard", "run")
        await sync_tensorboard(tmp_path, tmp_path / "tensorboard")


class Trap:
    """A server that notes what is said to it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self.heard.append(connection.recv(200))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def test_wandb_offline_has_every_step_reaches_for_no_network_and_leaves_no_process(tmp_path):
    trap = Trap()
    root = str(Path(__file__).parents[2])
    reach = dict.fromkeys(
        ("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), trap.url
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", JOB, str(tmp_path)],
        env={**os.environ, **reach, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    trap.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert trap.heard == []
    rows = wandb_rows(tmp_path)
    assert [(row["step"], float(row["reward"])) for row in rows] == [(str(n), n / 8) for n in (1, 2, 3, 4)]
    assert {row["agent/writer/calls"] for row in rows} == {"3"}
    records = list(wandb_records(tmp_path))
    kinds = [record.WhichOneof("record_type") for record in records]
    assert (kinds.count("exit"), kinds.count("alert")) == (2, 2)
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {(run.run_id, run.project, run.display_name) for run in runs} == {("small-1", "trial", "small")}
    config = {item.key: item.value_json for item in runs[0].config.update}
    assert config["seed"] == "7"
