"""A trainer's refusals about its workers, before a model is loaded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError


def fit(solve: Any, folder: Path, workers: Any) -> None:
    trainer = lightning.Trainer(
        model="no-such-model", workers=workers, folder=folder, steps=1, progress=False
    )
    trainer.fit(solve, train=[{"n": 1}])


def test_a_number_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        fit(lambda task: 1.0, tmp_path / "run", 0)


def test_a_function_that_can_t_be_sent_is_refused(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"its variable 'lock' of '<lambda>', a _thread\.lock"):
        fit(lambda task: float(lock.locked()), tmp_path / "run", 2)


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        fit(lightning.Command(["no-such-program"]), tmp_path / "run", None)
