"""A run's folder has one owner and is never half written."""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.errors import ConfigError, ModelError, StoreError
from lightning_core.trainer.folder import RunFolder, choose_folder, write_atomically
from tests.trainer.versioned import TASKS, solve


def test_a_second_trainer_on_the_same_folder_is_refused(tmp_path):
    with (
        RunFolder(tmp_path / "run", resume=False),
        pytest.raises(ConfigError, match="another trainer"),
        RunFolder(tmp_path / "run", resume=True),
    ):
        pass
    with RunFolder(tmp_path / "run", resume=True):
        pass


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        folder.address_file.touch()
    with pytest.raises(ConfigError, match="--resume"), RunFolder(tmp_path / "run", resume=False):
        pass


def test_resuming_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no run to resume"), RunFolder(tmp_path / "none", resume=True):
        pass


def test_the_folder_of_a_run_is_the_one_given_or_a_new_one_or_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no run to resume in 'runs'.*--folder"):
        choose_folder(None, resume=True)
    for age, name in enumerate(("new", "old", "oldest")):
        with RunFolder(Path("runs") / name, resume=False) as folder:
            folder.write_address(None, None)
            os.utime(folder.address_file, (1000 - age, 1000 - age))
    assert choose_folder(None, resume=True) == Path("runs/new")
    assert choose_folder(None, resume=False).parent == Path("runs")
    assert not choose_folder(None, resume=False).exists()
    assert choose_folder("mine", resume=True) == choose_folder("mine", resume=False) == Path("mine")


def test_a_folder_that_can_not_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StoreError, match=r"file/run.*folder="),
        RunFolder(tmp_path / "file" / "run", resume=False),
    ):
        pass


def test_the_newest_whole_checkpoint_is_found(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        assert folder.latest_checkpoint() is None
        for step in (1, 9, 10):
            folder.checkpoint(step).mkdir()
        (folder.checkpoints / ".step-000011.tmp").mkdir()
        assert folder.latest_checkpoint() == (10, folder.checkpoint(10))
        assert folder.checkpoint_folders() == [folder.checkpoint(step) for step in (1, 9, 10)]


WRITE = """
import os, signal, sys
from pathlib import Path
from lightning_core.trainer.folder import write_atomically

os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), b"3")
"""


def test_what_a_killed_writer_left_is_gone_after_the_next_write(tmp_path):
    write_atomically(tmp_path / "run.json", b"1")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / "run.json")])
    assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / "run.json").read_bytes() == b"1"
    write_atomically(tmp_path / "run.json", b"2")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("run.json", b"2")]


def test_a_run_that_goes_on_finds_a_checkpoint_that_a_killed_trainer_had_set_aside(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        (folder.checkpoints / ".step-000003.old").mkdir()
        (folder.checkpoints / ".step-000003.1234abcd.partial").mkdir()
        (folder.path / ".policy.old").mkdir()
    with RunFolder(tmp_path / "run", resume=True) as folder:
        assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000003"]
        assert folder.latest_checkpoint() == (3, folder.checkpoint(3))
        assert folder.policy.is_dir()


def test_an_atomic_write_leaves_nothing_else_behind(tmp_path):
    write_atomically(tmp_path / "a.json", b"1")
    write_atomically(tmp_path / "a.json", b"2")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"2")]


def test_a_run_stays_in_its_folder_when_the_app_changes_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_folder(), "models/mine")

    async def wander(task: lightning.Task) -> float:
        sandbox = tmp_path / "sandboxes" / uuid.uuid4().hex
        sandbox.mkdir(parents=True)
        os.chdir(sandbox)
        return await solve(task)

    algorithm = lightning.GRPO(group_size=3, tasks_per_step=2, kl=0.01)
    summary = lightning.Trainer(
        backend=LocalBackend("models/mine"), algorithm=algorithm, steps=2, folder="run", progress=False
    ).fit(wander, train=TASKS[:4], validation=TASKS[6:])
    run = tmp_path / "run"
    assert summary.folder == str(run)
    assert {"store.db", "policy", "checkpoints", "summary.json"} <= {path.name for path in run.iterdir()}
    assert (run / "checkpoints" / "step-000002" / "model" / "model.safetensors").is_file()
    assert not [path for path in (tmp_path / "sandboxes").rglob("*") if path.is_file()]


def test_a_run_whose_store_is_removed_ends_with_an_error_and_goes_on_from_what_was_recorded(tmp_path):
    folder = tmp_path / "run"

    async def remove(task: lightning.Task) -> float:
        if (folder / "checkpoints" / "step-000001").exists():
            (folder / "store.db").unlink(missing_ok=True)
        return await solve(task)

    settings = {"model": "tiny", "steps": 3, "folder": folder, "progress": False, "seed": 1}
    algorithm = lightning.GRPO(group_size=2, tasks_per_step=1)
    with pytest.raises(StoreError, match="was removed or replaced while it was open"):
        lightning.Trainer(**settings, algorithm=algorithm).fit(remove, train=TASKS)
    (rescued,) = folder.glob("store.rescued-*.db")
    rescued.rename(folder / "store.db")
    for end in ("-wal", "-shm"):
        (folder / f"store.db{end}").unlink(missing_ok=True)
    summary = lightning.Trainer(**settings, algorithm=algorithm, resume=True).fit(solve, train=TASKS)
    assert (summary.steps, summary.rollouts) == (3, 6)


def test_a_truncated_last_checkpoint_is_refused_with_the_one_before_it(tmp_path):
    settings = {"model": "tiny", "folder": tmp_path / "run", "progress": False, "seed": 1}
    algorithm = lightning.GRPO(group_size=2, tasks_per_step=1)
    lightning.Trainer(**settings, steps=2, checkpoint_every=1, keep_checkpoints=2, algorithm=algorithm).fit(
        solve, train=TASKS
    )
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    last = checkpoints[-1] / "model" / "model.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    again = lightning.Trainer(
        **settings, steps=3, checkpoint_every=1, algorithm=algorithm, resume=True, keep_checkpoints=2
    )
    said = rf"earlier checkpoint, {checkpoints[-2].name}: to go on from it, delete {checkpoints[-1].name}"
    with pytest.raises(ModelError, match=said):
        again.fit(solve, train=TASKS)
    shutil.rmtree(checkpoints[-1])
    assert again.fit(solve, train=TASKS).steps == 3
