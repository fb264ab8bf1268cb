"""A run's versions: recorded with their numbers, kept as long as asked, served again after a rollback."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.backends.local import LocalBackend
from lightning_core.errors import ConfigError, NotFoundError
from lightning_core.records.types import ResourceVersion, Rollout, Task
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.stores.versions import choose, find_current, get_version
from lightning_core.trainer.folder import RunFolder, absolute
from lightning_core.trainer.versions import prune
from tests.trainer.versioned import fit


async def versions_of(folder: Path) -> list[ResourceVersion]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        return await store.list_resources(folder.name)


async def choose_first(folder: Path) -> None:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        await choose(store, folder.name, 1, author="ann")


async def test_every_version_says_what_it_was_made_from_and_what_it_came_to(tmp_path):
    folder = tmp_path / "train"  # the rewards follow from this name: version 2 is the best
    fit(folder, steps=4, evaluate_every=2, keep_checkpoints=1)
    versions = await versions_of(folder)
    assert [(v.version, v.parent, v.author) for v in versions] == [
        (0, None, "trainer"), (1, 0, "trainer"), (2, 1, "trainer"), (3, 2, "trainer"), (4, 3, "trainer"),
    ]  # fmt: skip
    assert find_current(versions) == versions[4]
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        metrics = await store.list_metrics("train")
    assert [v.metrics["step"] for v in versions] == [0, 1, 2, 3, 4]
    # step k samples with version k: its reward is that version's own
    assert [v.metrics.get("reward") for v in versions] == [*(m.values["reward"] for m in metrics), None]
    assert [{"greedy", "sampled"} <= v.metrics.keys() for v in versions] == [True, False, True, False, True]

    places = [None if v.uri is None else Path(v.uri).relative_to(folder) for v in versions[1:]]
    assert places == [None, Path("versions/000002"), None, Path("checkpoints/step-000004")]
    assert Path(str(versions[0].uri)).name == "tiny"
    left = [path.name for part in ("checkpoints", "versions") for path in (folder / part).iterdir()]
    assert left == ["step-000004", "000002"]
    assert not (folder / "versions" / "000002" / "moments.safetensors").exists()


async def test_going_on_takes_the_newest_again_also_after_a_rollback_and_a_move(tmp_path):
    fit(tmp_path / "first", steps=1)
    folder = tmp_path / "run"
    (tmp_path / "first").rename(folder)
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        await choose(store, "first", 0, author="ann")
    fit(folder, steps=1, resume=True, keep_checkpoints=2)  # nothing to train: the choice stands
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        assert find_current(await store.list_resources("first")).version == 0
    fit(folder, steps=2, resume=True, keep_checkpoints=2)
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        versions = await store.list_resources("first")
    assert find_current(versions).version == 2
    assert [v.parent for v in versions] == [None, 0, 1]
    assert versions[1].uri == absolute(folder / "checkpoints" / "step-000001")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_keeps_what_serves_and_goes_on_without_the_optimizer_state(tmp_path, caplog):
    folder = tmp_path / "run"
    fit(folder, steps=3, backend=LocalBackend("tiny"))
    (left,) = (folder / "checkpoints").iterdir()
    assert left.name == "step-000003"
    assert "model/model.safetensors" in files(left)
    assert not {name for name in files(left) if "moments" in name}
    assert [v.uri is not None for v in asyncio.run(versions_of(folder))][1:3] == [False, False]
    weights = (left / "model" / "model.safetensors").read_bytes()
    assert (folder / "policy" / "model.safetensors").read_bytes() == weights

    fit(folder, steps=4, backend=LocalBackend("tiny"), resume=True, keep_checkpoints=1)
    assert "AdamW starts without moments" in caplog.text
    caplog.clear()
    (left,) = (folder / "checkpoints").iterdir()
    assert {"moments.safetensors", "state.json"} <= files(left)
    fit(folder, steps=5, backend=LocalBackend("tiny"), resume=True)
    assert "AdamW" not in caplog.text


def test_a_folder_that_is_reached_by_a_link_loses_nothing_that_is_pointed_at(tmp_path):
    folder, link = tmp_path / "run", tmp_path / "link"
    fit(folder, steps=2, keep_checkpoints=2)
    asyncio.run(choose_first(folder))
    link.symlink_to(folder)
    fit(link, steps=4, keep_checkpoints=1, resume=True)  # version 2 was the best of the first
    versions = asyncio.run(versions_of(folder))
    assert [v.uri is not None and Path(v.uri).is_dir() for v in versions[1:]] == [True, True, False, True]
    assert versions[1].uri == absolute(link / "versions" / "000001")


def make(folder: RunFolder, count: int) -> list[ResourceVersion]:
    """Checkpoints of versions 1 to `count`, and version 0, which lies elsewhere."""
    versions = [ResourceVersion(run_id=folder.run_id, version=0, uri="/models/base")]
    for number in range(1, count + 1):
        path = folder.checkpoint(number)
        (path / "model").mkdir(parents=True)
        (path / "model" / "model.safetensors").write_bytes(b"w" * number)
        (path / "moments.safetensors").write_bytes(b"m")
        (path / "state.json").write_text("{}")
        versions.append(
            ResourceVersion(
                run_id=folder.run_id, version=number, uri=absolute(path), metrics={"greedy": -abs(number - 4)}
            )
        )
    return versions


async def pruned(folder: RunFolder, store: MemoryStore, versions, newest: int) -> list[int]:
    """The versions that still have their content, which is whole; nothing is left of any other."""
    for version in versions:
        await store.put_resource(version)
    after = await prune(store, folder, versions, newest)
    assert after == await store.list_resources(folder.run_id)
    for version in after[1:]:
        if version.uri is not None:
            weights = Path(version.uri) / "model" / "model.safetensors"
            assert weights.read_bytes() == b"w" * version.version
            assert (Path(version.uri) / "state.json").exists()
            assert (Path(version.uri) / "moments.safetensors").exists() == ("step-" in version.uri)
    there = {
        absolute(path) for part in ("checkpoints", "versions") for path in (folder.path / part).glob("*")
    }
    assert there == {v.uri for v in after[1:] if v.uri is not None}
    return [v.version for v in after if v.uri is not None]


@pytest.mark.parametrize(
    ("newest", "measured", "left"),
    [(2, True, [0, 4, 8, 9]), (1, True, [0, 4, 9]), (1, False, [0, 9])],
)
async def test_the_newest_are_left_and_the_best(tmp_path, newest, measured, left):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        store, versions = MemoryStore(), make(folder, 9)
        if not measured:
            versions = [version.model_copy(update={"metrics": {}}) for version in versions]
        assert await pruned(folder, store, versions, newest) == left
        again = await store.list_resources(folder.run_id)
        assert await pruned(folder, store, again, newest) == left
        with pytest.raises(NotFoundError, match="version 2 was deleted"):
            get_version(again, 2)


async def test_nothing_is_deleted_that_something_points_at(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        store, versions = MemoryStore(), make(folder, 9)
        versions[2] = versions[2].model_copy(update={"chosen_at": 1e9})  # the current one
        versions[6] = versions[6].model_copy(update={"author": "ann"})
        for version in versions:
            await store.put_resource(version)
        await choose(store, folder.run_id, 5, author="ann")
        await choose(store, folder.run_id, 2, author="bob")
        versions = await store.list_resources(folder.run_id)
        rollouts = [
            Rollout(
                id=f"r{n}", run_id=folder.run_id, task=Task(input={}), group_id="g", step=0, policy_version=n
            )
            for n in (1, 3, 4)
        ]
        await store.enqueue(rollouts)
        for attempt in await store.lease("worker", 2, 60):
            if attempt.rollout.id == "r1":
                await store.finish(attempt, reward=1.0)
        assert await pruned(folder, store, versions, 1) == [0, 2, 3, 4, 5, 6, 9]


async def test_a_kill_between_the_record_and_the_folder_leaves_nothing_behind(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        store, versions = MemoryStore(), make(folder, 4)
        versions[2] = versions[2].model_copy(update={"metrics": {"greedy": 1.0}})
        # killed while it copied, then before it deleted
        (folder.path / "versions" / ".000002.1.partial" / "model").mkdir(parents=True)
        versions[1] = versions[1].model_copy(update={"uri": None})
        assert await pruned(folder, store, versions, 1) == [0, 2, 4]


def test_to_keep_nothing_to_resume_from_is_refused():
    with pytest.raises(ConfigError, match="keep_checkpoints=0"):
        lightning.Trainer(keep_checkpoints=0)


def test_what_is_kept_for_serving_takes_no_space_twice(tmp_path):
    from lightning_core.trainer.versions import _keep_for_serving

    with RunFolder(tmp_path / "run", resume=False) as folder:
        make(folder, 1)
        _keep_for_serving(folder.checkpoint(1), folder.served(1))
        names = "model/model.safetensors", "state.json"
        kept = [os.stat(folder.served(1) / name).st_ino for name in names]
        assert kept == [os.stat(folder.checkpoint(1) / name).st_ino for name in names]
