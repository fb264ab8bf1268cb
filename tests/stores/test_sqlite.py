"""A file's promises beyond the laws: durability, sharing between processes, and clear refusals."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import PrivateAttr

from lightning_core.errors import ConfigError, StoreError
from lightning_core.records.types import Call, Reward, Run, Span, Status, Task
from lightning_core.stores import sql, sqlite
from lightning_core.stores.sqlite import MemoryStore, SqliteConnection, SqliteStore
from lightning_core.stores.workers import Operation
from lightning_core.trainer.plan import RolloutPlan
from tests.build import make_rollouts as rollouts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


def start(url: str, job: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.worker", url, job]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so as root the block runs as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection is in the middle of writing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# URLs -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://", "sqlite:///runs.db"),
        ("sqlite:///", "sqlite:///runs.db"),
        ("sqlite:///folder/", "sqlite:///runs.db"),
        ("postgresql://host/db", "sqlite:///runs.db"),
        ("runs.db", "sqlite:///runs.db"),
        ("sqlite:///runs.db?timeout=3", "options"),
    ],
)
def test_a_url_that_names_no_file_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as refused:
        SqliteStore(url)
    assert repr(url) in str(refused.value)


def test_a_memory_url_takes_nothing_after_it() -> None:
    with pytest.raises(ConfigError, match="memory://x"):
        MemoryStore("memory://x")


def test_three_slashes_are_relative_and_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SqliteStore("sqlite:///runs.db").path == tmp_path / "runs.db"
    assert SqliteStore("sqlite:////data/runs.db").path == Path("/data/runs.db")


# durability -----------------------------------------------------------------------------------
async def test_everything_is_there_when_the_file_is_opened_again(url: str) -> None:
    call = Call(id="c", rollout_id="r0", attempt=1, agent="a", trained=True, started_at=1, ended_at=2)
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="run"))
        await store.enqueue(rollouts(2))
        (attempt,) = await store.lease("w", 1, 60)
        await store.add_call(call)
        await store.finish(attempt, reward=0.5)
        before = await store.find_rollouts("run")
    async with SqliteStore(url) as store:
        assert await store.find_run("run") is not None
        assert await store.find_rollouts("run") == before
        assert (await store.get_calls(["r0"]))["r0"] == [call]
        assert [one.value for one in (await store.get_rewards(["r0"]))["r0"]] == [0.5]
        assert [one.rollout.id for one in await store.lease("w", 5, 60)] == ["r1"]


async def test_a_killed_process_loses_nothing_it_was_told_is_stored(url: str) -> None:
    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(3))
    for round_ in range(3):
        recorder = start(url, "record")
        assert recorder.stdout is not None
        said = [recorder.stdout.readline() for _ in range(60)]
        recorder.kill()
        said += recorder.stdout.readlines()
        recorder.stdout.close()
        recorder.wait()
        told = {line.strip() for line in said if line.endswith("\n")}
        async with SqliteStore(url) as store:
            kept = (await store.get_calls([f"r{round_}"]))[f"r{round_}"]
        assert len(told) >= 60
        assert told <= {call.id for call in kept}
        assert all(len(call.prompt_ids or []) == 1000 for call in kept)


# sharing --------------------------------------------------------------------------------------
async def test_processes_that_share_a_file_never_share_a_rollout(url: str) -> None:
    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(150))
        workers = [start(url, "lease") for _ in range(2)]
        finished = await store.wait_finished([f"r{i}" for i in range(150)], timeout=60)
        outputs = [(await asyncio.to_thread(worker.communicate))[0].split() for worker in workers]
    assert {one.status for one in finished} == {Status.SUCCEEDED}
    done = [name for output in outputs for name in output]
    assert len(done) == len(set(done)) == 150


async def test_many_may_make_the_same_new_file_at_once(url: str) -> None:
    stores = [SqliteStore(url) for _ in range(8)]
    await asyncio.gather(*(store.__aenter__() for store in stores))
    added = await asyncio.gather(*(store.enqueue(rollouts(5)) for store in stores))
    await asyncio.gather(*(store.__aexit__() for store in stores))
    assert sum(added) == 5


async def test_another_store_on_the_file_hears_of_a_finish(url: str) -> None:
    async with SqliteStore(url) as trainer, SqliteStore(url) as worker:
        await trainer.enqueue(rollouts(1))
        waiting = asyncio.create_task(trainer.wait_finished(["r0"], timeout=60))
        (attempt,) = await worker.lease("w", 1, 60)
        done = await worker.finish(attempt, reward=1.0)
        assert await waiting == [done]


async def test_a_waiter_reads_no_rollout_again_until_one_has_finished(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is written meanwhile, by this process or another."""
    said: list[str] = []
    monkeypatch.setattr(sqlite, "POLL_SECONDS", 0.001)
    async with SqliteStore(url) as trainer, SqliteStore(url) as worker:
        await trainer.enqueue(rollouts(2))
        attempts = await worker.lease("w", 2, 60)
        await trainer._reader.run(Operation(lambda of: of.raw.set_trace_callback(said.append)))
        waiting = asyncio.create_task(trainer.wait_finished(["r0", "r1"], timeout=60))
        while len(said) < 20:  # so often it has asked whether anything finished
            await worker.put_run(Run(id="run"))
        assert sum("FROM rollouts" in statement for statement in said) == 1
        for attempt in attempts:
            await worker.finish(attempt, reward=1.0)
        assert len(await waiting) == 2


# refusals -------------------------------------------------------------------------------------
async def open_and_close(url: str) -> None:
    async with SqliteStore(url):
        pass


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"can't reach folder .*nowhere'"):
        await open_and_close(f"sqlite:///{tmp_path / 'nowhere' / 'runs.db'}")


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"can't be opened.*unable to open"):
        await open_and_close(f"sqlite:///{tmp_path}")


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, url: str) -> None:
    (tmp_path / "runs.db").write_bytes(b"not a database, but my thesis" * 100)
    with pytest.raises(StoreError, match=r"runs.db' is not a SQLite database"):
        await open_and_close(url)
    assert (tmp_path / "runs.db").read_bytes().startswith(b"not a database, but my thesis")


async def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, url: str) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError, match="database of another program"):
        await open_and_close(url)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("bookmarks",)]


async def test_a_schema_of_another_version_is_refused(tmp_path: Path, url: str) -> None:
    await open_and_close(url)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as other, other:
        other.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(StoreError, match=r"schema version 99, this program reads 11"):
        await open_and_close(url)


async def test_a_store_of_the_version_before_is_read_with_the_places_in_its_ids(
    tmp_path: Path, url: str
) -> None:
    asked, other = RolloutPlan("run", 2, retry=1).train([Task(input={})], 2), rollouts(1)
    async with SqliteStore(url) as store:
        await store.enqueue([*asked, *other])
    with closing(sqlite3.connect(tmp_path / "runs.db")) as old, old:
        old.execute("ALTER TABLE rollouts DROP COLUMN place")
        old.execute("ALTER TABLE rollouts DROP COLUMN retry")
        old.execute("ALTER TABLE calls DROP COLUMN policy")
        old.execute("UPDATE schema_version SET version = 8")
    async with SqliteStore(url) as store:
        assert await store.get_rollouts([one.id for one in (*asked, *other)]) == [*asked, *other]


async def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, url: str) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(500))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(StoreError, match=r"runs.db' is damaged: restore it"):
        async with SqliteStore(url) as store:
            await store.find_rollouts("run")


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022], ids=["000", "022"])
async def test_only_its_user_may_read_a_file_or_its_log(umask: int, tmp_path: Path, url: str) -> None:
    before = os.umask(umask)
    try:
        async with SqliteStore(url) as store:
            await store.enqueue(rollouts(3))
            assert modes(tmp_path) == dict.fromkeys(("runs.db", "runs.db-wal", "runs.db-shm"), 0o600)
    finally:
        os.umask(before)


@pytest.mark.parametrize(("found", "left"), [(0o644, 0o600), (0o666, 0o660), (0o660, 0o660), (0o640, 0o600)])
async def test_a_file_that_others_may_read_is_narrowed_and_shared_with_a_group_that_writes(
    found: int, left: int, tmp_path: Path, url: str
) -> None:
    await open_and_close(url)
    (tmp_path / "runs.db").chmod(found)
    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(3))
        assert set(modes(tmp_path).values()) == {left}


@pytest.fixture
def write_protected() -> Iterator[str]:
    """A store that another user may only read; not under tmp_path, which nobody else may enter."""
    with TemporaryDirectory() as name:
        folder, url = Path(name), f"sqlite:///{name}/runs.db"
        asyncio.run(open_and_close(url))
        (folder / "runs.db").chmod(0o444)
        folder.chmod(0o555)
        yield url
        folder.chmod(0o700)


async def test_a_file_that_may_not_be_written_is_refused(write_protected: str) -> None:
    with unprivileged(), pytest.raises(StoreError, match=r"runs.db' can't be written: make file and folder"):
        await open_and_close(write_protected)


async def test_a_file_locked_too_long_is_refused_and_works_again_afterwards(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    async with SqliteStore(url) as store:
        with locked(tmp_path / "runs.db"):
            results = await asyncio.gather(
                *(store.enqueue([one]) for one in rollouts(20)), return_exceptions=True
            )
        assert all(
            isinstance(one, StoreError) and "is locked: another process" in str(one) for one in results
        )
        assert await store.enqueue(rollouts(20)) == 20


async def test_a_lock_that_goes_in_time_is_waited_for(tmp_path: Path, url: str) -> None:
    async with SqliteStore(url) as store:
        with locked(tmp_path / "runs.db"):
            adding = asyncio.create_task(store.enqueue(rollouts(1)))
            await asyncio.sleep(0.1)
            assert not adding.done()
        assert await adding == 1


async def test_a_full_disk_refuses_what_has_no_room_and_keeps_the_rest(url: str) -> None:
    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(5))
        limit = "PRAGMA max_page_count = 60"
        await store._writer.run(Operation(lambda to: to.raw.execute(limit).close()))
        small = [store.put_run(Run(id=f"run{i}")) for i in range(3)]
        big = store.put_run(Run(id="big", config={"text": "x" * 1_000_000}))
        *stored, refused = await asyncio.gather(*small, big, return_exceptions=True)
        assert stored == [None] * 3
        assert isinstance(refused, StoreError)
        assert "has no room: free some disk space" in str(refused)
        assert len(await store.list_runs()) == 3
        assert len(await store.find_rollouts("run")) == 5


async def test_a_value_the_file_can_not_hold_harms_no_other_of_the_same_moment(url: str) -> None:
    def reward(text: str) -> Reward:
        return Reward(rollout_id="r0", attempt=1, value=1.0, source=text)

    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(1))
        await store.lease("w", 1, 60)
        texts = [str(i) for i in range(10)]
        bad = reward("").model_copy(update={"source": "half a parrot \ud83e"})
        adding = [store.add_rewards([one]) for one in [*map(reward, texts[:5]), bad, *map(reward, texts[5:])]]
        results = await asyncio.gather(*adding, return_exceptions=True)
        assert isinstance(results[5], StoreError)
        assert "not whole Unicode" in str(results[5])
        assert [one.source for one in (await store.get_rewards(["r0"]))["r0"]] == texts


async def test_token_ids_out_of_range_are_refused_by_value(url: str) -> None:
    call = Call(id="c", rollout_id="r0", attempt=1, agent="a", trained=True, started_at=1, ended_at=2)
    async with SqliteStore(url) as store:
        with pytest.raises(StoreError, match="-1 is not a token id"):
            await store.add_call(call.model_copy(update={"prompt_ids": [1, -1]}))


class WatchedSpan(Span):
    """Notes which thread turns it into a row."""

    _threads: list[str] = PrivateAttr(default_factory=list)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        self._threads.append(threading.current_thread().name)
        return super().model_dump(**options)


async def test_a_batch_of_events_is_written_out_off_the_event_loop(url: str) -> None:
    span = WatchedSpan(
        id="s", trace_id="t", rollout_id="r0", attempt=1, name="s", started_at=1.0, ended_at=2.0
    )
    async with SqliteStore(url) as store:
        await store.add_events([span])
    assert span._threads == [f"store {store.path}"]


async def test_a_store_that_is_not_open_says_so(url: str) -> None:
    store = SqliteStore(url)
    with pytest.raises(StoreError, match="not open: use it inside `async with store`"):
        await store.list_runs()
    async with store:
        pass
    with pytest.raises(StoreError, match="not open"):
        await store.enqueue(rollouts(1))


async def test_what_was_handed_in_before_the_close_is_stored(url: str) -> None:
    async with SqliteStore(url) as store:
        adding = [asyncio.create_task(store.enqueue([one])) for one in rollouts(50)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*adding) == [1] * 50


async def test_a_lease_costs_the_same_however_many_rollouts_have_ended(url: str) -> None:
    """No query of the queue may scan the table: each is answered from an index."""
    plans = []
    async with SqliteStore(url) as store:
        for run_id in (None, "x"):
            queue, given = sql.queued(run_id)
            plan = f"EXPLAIN QUERY PLAN SELECT * FROM {queue} ORDER BY priority DESC, seq"
            plans += await store._reader.run(Operation(partial(_rows, plan, given)))
    assert all("USING INDEX rollouts_queued" in str(plan[3]) for plan in plans)
    assert not any("TEMP B-TREE" in str(plan[3]) for plan in plans)


def _rows(query: str, given: tuple[str, ...], connection: SqliteConnection) -> list[tuple[object, ...]]:
    return connection.rows(query, *given)


async def test_a_read_that_fails_leaves_the_next_one_up_to_date(url: str) -> None:
    """The rows after it must not keep the reader in the past, however long the error is kept."""
    async with SqliteStore(url) as store:
        await store.enqueue(rollouts(1))
        await store.lease("worker", 1, 60.0)
        for number, started_at in enumerate(("soon", 1.0, 1.0)):
            await store.add_call(call(f"c{number}", started_at))
        with pytest.raises(StoreError, match="soon") as kept:
            await store.get_calls(["r0"])
        await store.enqueue(rollouts(2))
        assert [attempt.rollout.id for attempt in await store.lease("worker", 9, 60.0)] == ["r1"]
        assert kept.value


def call(call_id: str, started_at: object) -> Call:
    return Call.model_construct(
        id=call_id,
        rollout_id="r0",
        attempt=1,
        agent="a",
        trained=True,
        request={},
        started_at=started_at,
        ended_at=2.0,
    )


@pytest.mark.parametrize("what", ["removed", "replaced", "log removed", "folder moved"])
async def test_a_file_that_is_removed_or_replaced_while_it_is_open_is_noticed_and_its_records_are_kept(
    tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file, log = folder / "runs.db", folder / "runs.db-wal"
    store = SqliteStore(f"sqlite:///{file}")
    await store.__aenter__()
    await store.put_run(Run(id="run"))
    await store.enqueue(rollouts(3))
    if what == "folder moved":
        folder.rename(tmp_path / "elsewhere")
    elif what == "log removed":
        log.unlink()
    else:
        file.unlink()
    if what == "replaced":
        async with SqliteStore(f"sqlite:///{file}") as other:
            await other.put_run(Run(id="another"))
    said = "was removed or replaced while it was open, so nothing more is recorded"
    for attempt in range(2):
        with pytest.raises(StoreError, match=said):
            await (store.put_run(Run(id="late")) if attempt else store.find_run("run"))
    with pytest.raises(StoreError, match=said):
        await store.__aexit__(None, None, None)
    if what == "folder moved":
        async with SqliteStore(f"sqlite:///{tmp_path / 'elsewhere' / 'runs.db'}") as moved:
            assert len(await moved.find_rollouts("run")) == 3
        return
    (rescued,) = folder.glob("runs.rescued-*.db")
    assert rescued.stat().st_mode & 0o777 == 0o600
    async with SqliteStore(f"sqlite:///{rescued}") as again:
        if what != "replaced":  # whoever opened the new file may have taken the log of the old one
            assert len(await again.find_rollouts("run")) == 3
        assert "late" not in [one.id for one in await again.list_runs()]


async def test_a_store_whose_file_is_removed_after_the_last_record_says_so_when_it_is_closed(
    tmp_path: Path, url: str
) -> None:
    store = SqliteStore(url)
    await store.__aenter__()
    await store.put_run(Run(id="run"))
    (tmp_path / "runs.db").unlink()
    with pytest.raises(StoreError, match="was removed or replaced"):
        await store.__aexit__(None, None, None)
    rescued = tmp_path / f"runs.rescued-{os.getpid()}.db"
    async with SqliteStore(f"sqlite:///{rescued}") as again:
        assert await again.find_run("run") is not None


async def test_an_error_of_the_block_is_not_replaced_by_that_of_a_removed_file(
    tmp_path: Path, url: str
) -> None:
    async def fail() -> None:
        async with SqliteStore(url) as store:
            await store.put_run(Run(id="run"))
            (tmp_path / "runs.db").unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
