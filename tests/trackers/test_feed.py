"""A run never waits for a tracker nor fails with it; what is no tracker is refused at start."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError, UnsupportedError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Alert, Run
from lightning_core.trackers import base
from lightning_core.trackers.base import Beginning, Feed
from lightning_core.trackers.tensorboard import TensorBoard
from lightning_core.trainer.observers import Trackers
from tests.build import agentlightning
from tests.trainer.watching import fit, grpo

RUN = Run(id="r")


class Noting:
    """Notes what it is told, and fails where it is asked to."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.told: list[tuple[Any, ...]] = []

    def start(self, beginning: Beginning) -> None:
        self._note("start", beginning.run.id, beginning.resumed)

    def log(self, step: int, values: Any, at: float) -> None:
        self._note("log", step)

    def alert(self, alert: Alert) -> None:
        self._note("alert", alert.id)

    def finish(self, status: str) -> None:
        self._note("finish", status)

    def _note(self, *told: Any) -> None:
        self.told.append(told)
        if told[0] in self.failing:
            raise OSError(f"no {told[0]} today")


def tell(tracker: Noting) -> None:
    feed = Feed("noting", tracker)
    feed.start(Beginning(RUN))
    feed.tell("log", 1, {}, 0.0)
    feed.tell("log", 2, {}, 0.0)
    feed.tell("finish", "finished")
    feed.join()


def test_a_tracker_is_told_everything_in_turn():
    tracker = Noting()
    tell(tracker)
    assert tracker.told == [("start", "r", False), ("log", 1), ("log", 2), ("finish", "finished")]


def test_one_that_fails_is_told_the_rest_and_complained_of_once(caplog):
    tracker = Noting("log")
    tell(tracker)
    assert len(tracker.told) == 4
    (record,) = caplog.records
    assert "'noting' failed at 'log', said once" in record.message
    assert "no log today" in record.message


def test_one_that_could_not_start_is_left_alone(caplog):
    tracker = Noting("start")
    tell(tracker)
    assert tracker.told == [("start", "r", False)]
    assert len(caplog.records) == 1


def test_one_that_hangs_is_left_behind(caplog):
    released = threading.Event()

    class Hanging(Noting):
        def finish(self, status: str) -> None:
            released.wait()

    feed = Feed("hanging", Hanging())
    feed.start(Beginning(RUN))
    feed.tell("finish", "finished")
    feed.join(timeout=0.01)
    assert "still writes after 0.01 s" in caplog.text
    released.set()
    feed.join()


def test_a_run_with_a_failing_tracker_is_trained_and_one_that_fails_says_so_to_its_trackers(tmp_path):
    broken, whole = Noting("log"), Noting()
    fit(tmp_path / "run", grpo(), steps=2, trackers=[broken, whole])
    assert whole.told == [("start", "run", False), ("log", 1), ("log", 2), ("finish", "finished")]

    async def failing(task: lightning.Task) -> float:
        raise RuntimeError("the app is broken")

    with pytest.raises(lightning.LightningError):
        fit(tmp_path / "other", grpo(), failing, trackers=[whole])
    assert whole.told[-2:] == [("start", "other", False), ("finish", "failed")]


def test_what_is_no_tracker_is_refused_with_the_names_that_there_are():
    plugins = load_plugins([])
    with pytest.raises(ConfigError, match=r"tensorbord.*did you mean 'tensorboard'"):
        Trackers(["tensorbord"], plugins, resumed=False)
    for given in (TensorBoard, object()):
        with pytest.raises(ConfigError, match=r"'mlflow', 'tensorboard', 'wandb'.*start, log, alert, finish"):
            Trackers([given], plugins, resumed=False)
    assert Trackers("tensorboard", plugins, resumed=False)


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow-skinny")],
)
def test_a_library_that_is_not_installed_is_named_with_its_package(name, package, monkeypatch):
    finder: Any = ModuleType("util")
    finder.find_spec = lambda module: None
    monkeypatch.setattr(base.importlib, "util", finder)
    with pytest.raises(UnsupportedError, match=f"{name!r} needs.*pip install {package}"):
        Trackers([name], load_plugins([]), resumed=False)


def test_the_command_takes_several_trackers_by_name(tmp_path, monkeypatch, capsys):
    arguments = ["--set", 'trackers=["tensorboard","no"]']
    script = Path(__file__).parents[1] / "cli" / "small_job.py"
    monkeypatch.chdir(tmp_path)
    agentlightning("train", script, *arguments)
    assert "no tracker is called 'no'" in capsys.readouterr().err
