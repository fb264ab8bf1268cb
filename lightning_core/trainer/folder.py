"""The folder of a run: store, checkpoints, summary and curve, and who may read and write there.

It holds prompts, the key that signs every token of the run, and weights: it is its user's alone.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeGuard

from lightning_core.backends.weights.folders import ADAPTER, recover, tidy
from lightning_core.errors import ConfigError, StoreError
from lightning_core.stores.credentials import from_folder
from lightning_core.texts.masking import without_password

log = logging.getLogger(__name__)

CHECKPOINT = re.compile(r"step-(\d{6})")
_SQLITE = "sqlite:///"
RUNS = Path("runs")
"""Where runs lie that are given no folder."""


def choose_folder(folder: str | Path | None, *, resume: bool) -> Path:
    """The one given; else a new one in `runs/`, or to resume, the one of the run there last begun or gone on
    with. Raises ConfigError if there is none."""
    if folder is not None:
        return Path(folder)
    if not resume:
        return RUNS / time.strftime("%Y%m%d-%H%M%S")
    stores = sorted(RUNS.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    if not stores:
        raise ConfigError(f"there is no run to resume in {str(RUNS)!r}; give one with folder=... (--folder)")
    return stores[-1].parent


class RunFolder:
    """Owns the folder while open: a second trainer on the same folder is refused."""

    def __init__(self, path: Path, *, resume: bool, again: bool = False) -> None:
        """`again`: the run of the folder, which has made no update, gives way to a new one."""
        self.path = Path(absolute(path))
        """Absolute, since an app may change the working directory."""
        self._resume = resume
        self.began_again = again and not resume
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        if self._resume and not (self.path / "lock").exists():
            raise ConfigError(
                f"there is no run to resume in {str(self.path)!r}; `agentlightning runs` lists them"
            )
        try:
            make_private(self.path, known="lock")
            self.checkpoints.mkdir(mode=0o700, exist_ok=True)
            self._lock = open(self.path / "lock", "w", opener=_private)
        except OSError as problem:
            raise StoreError(
                f"can't write the run folder {str(self.path)!r}: {problem}; choose another with folder=..."
            ) from problem
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(f"another trainer is running in {str(self.path)!r}") from None
        if self.began_again:
            self._clear()
        if not self._resume and self.address_file.exists():
            self.__exit__()
            raise ConfigError(
                f"{str(self.path)!r} already holds a run: resume it with resume=True (--resume), "
                "or give another folder"
            )
        for parent in (self.checkpoints, self.path / "versions", self.path / "references"):
            tidy(parent)
        recover(self.policy)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _clear(self) -> None:
        """Remove what a run without an update has left: its records and the weights that it began with."""
        for name in ("store.db", "store.db-wal", "store.db-shm"):
            (self.path / name).unlink(missing_ok=True)
        for name in ("versions", "references", "policies"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        self.address_file.unlink(missing_ok=True)

    @property
    def held(self) -> bool:
        """Whether a trainer on this machine has the folder open."""
        try:
            with open(self.path / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def run_id(self) -> str:
        """The id the run was begun with; for a new run, the folder's name."""
        address = self.read_address()
        if address is not None:
            return str(address["run"])
        return re.sub(r"[^A-Za-z0-9_.-]", "_", self.path.resolve().name)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The trained policy as an ordinary transformers folder."""
        return self.path / "policy"

    @property
    def has_adapters_alone(self) -> bool:
        """Whether the policy is LoRA adapters in PEFT's format, which are loaded onto their base model."""
        return (self.policy / ADAPTER).is_file()

    @property
    def store_url(self) -> str:
        """The store of the folder's own."""
        return f"sqlite:///{self.path.resolve() / 'store.db'}"

    @property
    def address_file(self) -> Path:
        """Says under which id and in which store the run is kept; null is the folder's own."""
        return self.path / "run.json"

    def read_address(self) -> dict[str, Any] | None:
        """{"run": id, "store": URL or null, "port": of its gateway or null}; None before the run was opened.
        The URL has no password. A folder of an older version names no port. Raises ConfigError for a file
        that does not say which run it is."""
        try:
            address = json.loads(self.address_file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(f"{str(self.address_file)!r} can't be read: {error.strerror}") from error
        except (ValueError, RecursionError):
            address = None
        if not _is_address(address):
            raise ConfigError(
                f"{str(self.address_file)!r} does not say which run this is: write "
                '{"run": "ITS ID", "store": null} into it, or remove the folder'
            )
        return address

    def find_run(self) -> tuple[str, str] | None:
        """(URL of its store, id in it) of the run; None before it was opened. As only the folder names the
        store, it gets no password of the environment (`stores.credentials`)."""
        address = self.read_address()
        if address is None:
            return None
        return (from_folder(address["store"]) if address["store"] else self.store_url), address["run"]

    def write_address(self, store: str | None, port: int | None = None) -> None:
        """Say under which id and in which store the run is kept, None is the folder's own, and at which port
        its gateway listens. The store's password is left out."""
        store = None if store is None else without_password(from_anywhere(store))
        self.write_json(self.address_file.name, {"run": self.run_id, "store": store, "port": port})

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def reference(self, step: int) -> Path:
        """The policy after `step` updates, to which a phase that began there compares its own."""
        return self.path / "references" / f"step-{step:06d}"

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """(updates made, folder) of the newest whole checkpoint."""
        found = [(int(path.name[-6:]), path) for path in self.checkpoint_folders()]
        return max(found, default=None)

    def checkpoint_folders(self) -> list[Path]:
        """Whole checkpoints, the newest last."""
        return sorted(path for path in self.checkpoints.iterdir() if CHECKPOINT.fullmatch(path.name))

    def served(self, version: int) -> Path:
        """A version that is kept to be served, without what only training needs."""
        return self.path / "versions" / f"{version:06d}"

    def write_json(self, name: str, value: Any) -> Path:
        path = self.path / name
        write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
        return path


def policy_folder(run: Path, policy: str | None) -> Path:
    """Where the weights of a policy lie in a run's folder; None: the run's own."""
    return run if policy is None else run / "policies" / policy


class PolicyFolder(RunFolder):
    """The part of a run's folder with the weights of a named policy: checkpoints, versions, and `policy/`."""

    def __init__(self, run: RunFolder, policy: str) -> None:
        super().__init__(policy_folder(run.path, policy), resume=True)
        self._run = run

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.run_id

    def prepare(self) -> None:
        """Make it, and remove what a killed trainer has left in it."""
        self.checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in (self.checkpoints, self.path / "versions", self.path / "references"):
            tidy(parent)
        recover(self.policy)


def _is_address(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is what `write_address` writes, of this version or an older one."""
    return (
        isinstance(value, dict)
        and value.keys() >= {"run", "store"}
        and isinstance(value["run"], str)
        and isinstance(value["store"], str | None)
        and isinstance(value.get("port"), int | None)
    )


def absolute(path: Path) -> str:
    """Where it lies, as a version's record says it: the same from any working directory."""
    return os.path.abspath(path)


def from_anywhere(store: str) -> str:
    """The URL of a store as it means the same from any working directory."""
    name = store.removeprefix(_SQLITE)
    relative = store.startswith(_SQLITE) and name and not name.startswith("/")
    return _SQLITE + os.path.abspath(name) if relative else store


def check_there(url: str) -> None:
    """Raise ConfigError for a SQLite file that is not there: to open it would make it."""
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        raise ConfigError(f"there is no store {url!r}; give the URL of one that a run was written to")


def make_private(folder: Path, *, known: str) -> None:
    """The folder is there, and only its user may enter it.

    One that others may enter is narrowed if it is empty or holds a file named `known`; any other is the
    user's for other things too, and a warning says what to do.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    mode = folder.stat().st_mode
    if not mode & 0o077:
        return
    if (folder / known).exists() or not any(folder.iterdir()):
        with suppress(PermissionError):  # somebody else's folder
            folder.chmod(mode & 0o7700)
            return
    log.warning(
        "other users may enter the run folder %r, which will hold prompts and weights: run `chmod 700 %s`",
        str(folder),
        folder,
    )


def write_atomically(path: Path, content: bytes) -> None:
    """The file, which only its user may read, holds the old content or the new, never a part of it.

    No two may write it at once: what a writer that was killed has left is the next one's to replace.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        raise StoreError(f"can't write {str(path)!r}: {problem}; free some space, then resume") from problem


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
