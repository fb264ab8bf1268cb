"""A run's folder of a stranger: what the commands send, and what they print, of it."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_core.errors import ConfigError
from lightning_core.records.types import Metrics, Rollout, Run, Task
from lightning_core.stores.credentials import from_folder
from lightning_core.stores.http_link import address_of
from lightning_core.stores.postgres_connection import place_of
from lightning_core.stores.redis_connection import read_url
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder
from tests.build import agentlightning

SECRET = "only-for-the-store-that-i-named"
VARIABLES = ("LIGHTNING_API_TOKEN", "REDISCLI_AUTH", "PGPASSWORD")
ASKS = b"R\x00\x00\x00\x08\x00\x00\x00\x03"
"""PostgreSQL's question for a password in clear."""


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """The port of a stranger's server, and what it was sent."""
    sent: list[bytes] = []

    def answer(peer: socket.socket) -> None:
        with peer:
            peer.settimeout(2.0)
            try:
                while data := peer.recv(1 << 16):
                    sent.append(data)
                    if data[4:8] == b"\x04\xd2\x16\x2f":  # PostgreSQL's request for TLS
                        peer.sendall(b"N")
                    elif b"client_encoding" in data:
                        peer.sendall(ASKS)
                    elif b"HTTP/1.1" in data:
                        peer.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                    elif data[:1] == b"*":
                        peer.sendall(b"-NOAUTH Authentication required.\r\n")
                    else:
                        break
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], sent


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a verb in this process; returns what it printed."""
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def call(*arguments: object) -> str:
        agentlightning(*arguments)
        said = capsys.readouterr()
        return said.out + said.err

    return call


def write(folder: Path, store: object, run: object = "a") -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run": run, "store": store, "port": None}))
    return folder


@pytest.mark.parametrize("scheme", ["http", "redis", "postgresql"])
def test_a_store_that_only_a_folder_names_gets_no_password_of_the_environment(
    tmp_path: Path,
    listener: tuple[int, list[bytes]],
    command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    port, sent = listener
    store = f"{scheme}://127.0.0.1:{port}/0"
    folder = write(tmp_path / "runs" / "a", store)
    command("runs", tmp_path / "runs")
    said = command("show", folder) + command("alerts", folder)
    assert SECRET.encode() not in b"".join(sent)
    assert "was not sent" in " ".join(said.split())
    assert f"LIGHTNING_STORE={store}" in "".join(said.split())
    monkeypatch.setenv("LIGHTNING_STORE", f"redis://other {store}")
    command("show", folder)
    assert SECRET.encode() in b"".join(sent), "to the store that is named"


def test_a_store_that_the_user_names_gets_the_password_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    assert address_of("http://host:1")[1] == SECRET
    assert read_url("redis://host").options["password"] == SECRET
    assert "password" not in place_of("postgresql://host/db").conninfo, "so libpq takes PGPASSWORD"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        "postgresql://me@host/db?application_name=x",
        "postgresql:///db?host=host",
        "postgresql://me@/db?hostaddr=10.0.0.1&service=prod",
    ],
)
def test_libpq_takes_no_password_from_outside_for_a_foreign_url(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    place = place_of(from_folder(url))
    assert place.conninfo["password"] == ""
    assert place.conninfo.get("user") == ("me" if "me@" in url else None)
    assert ":@" not in place.name


@pytest.mark.parametrize("url", ["postgresql://a@b@c/d", "redis://h/x@evil", "http://h?a=@b", "http://a b/"])
def test_a_foreign_url_that_can_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.json names a store that can't be read"):
        from_folder(url)


def test_a_folder_s_own_password_and_files_stay_as_they_are() -> None:
    for url in ("postgresql://me:pw@host/db", "sqlite:////tmp/x.db", "memory://"):
        assert from_folder(url) == url


def test_a_foreign_sqlite_path_is_not_made(tmp_path: Path, command: Callable[..., str]) -> None:
    folder = write(tmp_path / "runs" / "a", f"sqlite:///{tmp_path / 'new.db'}")
    assert "there is no store" in command("show", folder)
    command("runs", tmp_path / "runs")
    assert not (tmp_path / "new.db").exists()


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, sqlite3.Connection]:
    """The folder of a run, and its database."""

    async def begin() -> Path:
        with RunFolder(tmp_path / "runs" / "a", resume=False) as folder:
            folder.write_address(None)
            async with SqliteStore(folder.store_url) as store:
                await store.put_run(Run(id="a"))
                task = Task(id="t", input={})
                await store.enqueue([Rollout(id="r", run_id="a", task=task, group_id="g", step=0)])
                await store.put_metrics(Metrics(run_id="a", step=0, values={"reward": 1.0}))
            return folder.path

    folder = asyncio.run(begin())
    return folder, sqlite3.connect(folder / "store.db", isolation_level=None)


ENDLESS = (
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n AS run_id, n AS step FROM t"
)


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (("DROP TABLE metrics", f"CREATE VIEW metrics AS {ENDLESS}"), "holds a view 'metrics'"),
        (("UPDATE runs SET config = '{'",), "holds a record that can't be read"),
        (("UPDATE runs SET created_at = 'x'",), "holds a record that can't be read"),
        (("UPDATE rollouts SET status = 'odd'",), "holds a record that can't be read"),
        (("""UPDATE runs SET provenance = '{"command": 5, "machine": 7}'""",), "can't be shown"),
    ],
    ids=["endless view", "broken JSON", "wrong type", "unknown status", "odd provenance"],
)
def test_a_damaged_store_is_named_and_harms_no_list(
    damaged: tuple[Path, sqlite3.Connection],
    command: Callable[..., str],
    statements: tuple[str, ...],
    said: str,
) -> None:
    folder, connection = damaged
    for statement in statements:
        connection.execute(statement)
    connection.close()
    assert said in " ".join(command("show", folder).split())
    write(folder.parent / "b", 5)
    listed = command("runs", folder.parent)
    assert "Traceback" not in listed
    assert "unreadable" in listed


VERBS = (
    *(("show",), ("show", "--full"), ("show", "--rollout", "r", "--full"), ("why", "r"), ("alerts",)),
    *(("whatif", "--credit", "uniform"), ("models", "list"), ("sync", "out")),
)
CHANGES = {
    "no table": "DROP TABLE rollouts",
    "no column": "ALTER TABLE metrics RENAME COLUMN step TO other",
    "bytes": "UPDATE rollouts SET task = x'ff00'",
    "a list": "UPDATE runs SET config = '[1]'",
    "a place": "UPDATE rollouts SET place = 5, split = 'validation', status = 'succeeded'",
    "numbers": 'UPDATE metrics SET "values" = \'{"reward": "much"}\'',
}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_names_the_run_or_store_that_is_damaged(
    damaged: tuple[Path, sqlite3.Connection],
    command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
) -> None:
    """No verb ends in a traceback: any error but one of this package would leave `main`."""
    folder, connection = damaged
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.chdir(folder.parent)
    at = 2 if verb[0] == "models" else 1
    whole = (folder / "store.db").read_bytes()
    for statement in CHANGES.values():
        connection.execute(statement)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        said = command(*verb[:at], folder, *verb[at:])
        assert "Traceback" not in said
        if "Error" in said:
            assert str(folder) in said or "'a'" in said
        connection.close()
        (folder / "store.db").write_bytes(whole)
        connection = sqlite3.connect(folder / "store.db", isolation_level=None)
    connection.close()
    for junk in (b"junk" * 5_000, whole[:5_000]):
        (folder / "store.db").write_bytes(junk)
        assert "store.db" in command(*verb[:at], folder, *verb[at:])


def test_a_folder_that_does_not_say_its_run_is_named(
    tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    folder = tmp_path / "a"
    folder.mkdir()
    file = folder / "run.json"
    for content in (b"", b"5", b"[" * 100_000, b"\xff", b'{"run": 5, "store": null}', b'{"run": "a"}'):
        file.write_bytes(content)
        assert f"{str(file)!r} does not say which run this is: write" in command("show", folder)
    file.unlink()
    file.mkdir()
    assert f"{str(file)!r} can't be read: Is a directory" in command("show", folder)
