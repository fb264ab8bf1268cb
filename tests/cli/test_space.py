"""`agentlightning runs rm` and `runs prune`, on runs as training leaves them."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

from lightning_core.backends.local import LocalBackend
from lightning_core.cli.space import disk_bytes
from lightning_core.records.types import Run
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder
from tests.trainer.versioned import fit


def test_a_file_with_two_names_counts_once(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "part").mkdir()
    os.link(tmp_path / "a", tmp_path / "part" / "b")
    assert disk_bytes(tmp_path) == 1000


async def set_status(folder: Path, status: str) -> None:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        run = await store.find_run(folder.name)
        assert isinstance(run, Run)
        await store.put_run(run.model_copy(update={"status": status}))


def test_prune_keeps_what_serves_and_what_a_stopped_run_resumes_from(tmp_path, call):
    for name in ("finished", "stopped"):
        fit(tmp_path / name, steps=2, backend=LocalBackend("tiny"), keep_checkpoints=2)
    asyncio.run(set_status(tmp_path / "stopped", "stopped"))
    before = disk_bytes(tmp_path)
    status, said = call("runs", "prune", tmp_path)
    assert status == 0, said
    left = {name: list((tmp_path / name / "checkpoints").iterdir()) for name in ("finished", "stopped")}
    assert [path.name for paths in left.values() for path in paths] == ["step-000002"] * 2
    assert not (left["finished"][0] / "moments.safetensors").exists()
    assert (left["stopped"][0] / "moments.safetensors").exists()
    assert disk_bytes(tmp_path) < before / 2
    assert (tmp_path / "finished" / "policy" / "model.safetensors").exists()
    fit(tmp_path / "stopped", steps=3, backend=LocalBackend("tiny"), resume=True)


def test_a_run_is_deleted_only_when_asked_and_never_while_it_is_trained(tmp_path, call, monkeypatch):
    folder = tmp_path / "run"
    fit(folder, steps=1)
    with RunFolder(folder, resume=True):
        status, said = call("runs", "rm", folder, "--yes")
        assert (status, "a trainer is running" in said) == (1, True)
        assert "left as it is: another trainer is running" in call("runs", "prune", folder)[1]
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert call("runs", "rm", folder)[0] == 1
    assert folder.exists()
    assert call("runs", "rm", tmp_path, "--yes")[0] == 1  # no run's folder
    status, said = call("runs", "rm", folder, "--yes")
    assert (status, folder.exists()) == (0, False)
    assert "deleted" in said


def test_the_list_says_what_each_run_takes(tmp_path, call):
    fit(tmp_path / "small", steps=1)
    status, said = call("runs", tmp_path)
    assert status == 0
    assert "MiB" in said
    assert call("runs", "list", tmp_path)[1].splitlines()[0] == said.splitlines()[0]
