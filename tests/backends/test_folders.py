"""A folder is there whole, the old one or the new one, wherever a kill ends those who write it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.backends.weights.folders import replacing
from lightning_core.backends.weights.sources import find_source
from lightning_core.errors import ModelError

WRITE = """
import os, signal, sys
from pathlib import Path
from lightning_core.backends.weights.folders import replacing

folder, word, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
done = -1


def kill(event, arguments):
    global done
    if done >= 0 and event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "writing"):
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1


sys.addaudithook(kill)
done = 0
with replacing(folder) as partial:
    (partial / "config.json").write_text(word)
    sys.audit("writing")
    (partial / "model").mkdir()
    (partial / "model" / "weights").write_text(word)
"""


def write(folder: Path, word: str, *, last: int) -> bool:
    """Write it in a process that is killed when it has changed the disk `last` times; whether it ended."""
    done = subprocess.run([sys.executable, "-c", WRITE, str(folder), word, str(last)])
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode == 0


def every_kill(folder: Path, *words: str) -> Iterator[int]:
    """With the first word written, each point at which a process that writes the second may be killed."""
    last = 0
    while True:
        write(folder, words[0], last=1000)
        ended = write(folder, words[1], last=last)
        yield last
        if ended:
            assert last > 6
            return
        last += 1


def read(folder: Path) -> str:
    """The word that all of it holds. Finds it as whoever loads a model does."""
    source = Path(find_source(folder)[0])
    word = (source / "config.json").read_text()
    assert (source / "model" / "weights").read_text() == word
    return word


def test_after_a_kill_at_any_moment_a_reader_finds_the_old_folder_or_the_new(tmp_path: Path) -> None:
    found = [read(tmp_path / "model") for _ in every_kill(tmp_path / "model", "old", "new")]
    assert found == sorted(found, key=["old", "new"].index)
    assert set(found) == {"old", "new"}


def test_a_writer_that_is_killed_after_another_leaves_a_whole_folder_too(tmp_path: Path) -> None:
    for _ in every_kill(tmp_path / "model", "old", "new"):
        for last in (1, 2, 3):
            write(tmp_path / "model", "newest", last=last)
        assert read(tmp_path / "model") in ("old", "new")


def test_what_kills_left_behind_is_gone_after_the_next_write(tmp_path: Path) -> None:
    for _ in every_kill(tmp_path / "model", "old", "new"):
        write(tmp_path / "model", "newest", last=1000)
        assert read(tmp_path / "model") == "newest"
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_writer_whom_a_reader_overtakes_still_writes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write(folder, "old", last=1000)
    seen = []

    def read_between(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and str(arguments[1]) == str(folder) and not seen:
            seen.append("")
            seen[0] = read(folder)

    sys.addaudithook(read_between)
    with replacing(folder) as partial:
        (partial / "model").mkdir()
        for name in ("config.json", "model/weights"):
            (partial / name).write_text("new")
    assert (seen, read(folder)) == (["old"], "new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_swap_that_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write(folder, "old", last=1000)
    with pytest.raises(ModelError, match="can't write model folder"), replacing(folder) as partial:
        partial.rmdir()  # as if the disk had lost it
    assert read(folder) == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
