"""The example: its repositories, its reward, and the fence around a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.coder.fence import CREATE_RULESET, call, fenced
from examples.coder.tasks import FAULTS, TEST, make_tasks, write
from examples.coder.train import passes


def has_landlock() -> bool:
    try:
        return sys.platform == "linux" and call(CREATE_RULESET, None, 0, 1) > 0
    except OSError:
        return False


needs_landlock = pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")


@needs_landlock
async def test_each_repository_fails_its_test_until_it_is_mended(tmp_path: Path) -> None:
    right = {wrong: good for _, good, wrong, _ in FAULTS}
    for number, task in enumerate(make_tasks(6, seed=3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(task, folder)
        assert not await passes(str(folder))
        (name,) = task["files"]
        source = (folder / name).read_text()
        wrong = source.strip().rpartition("return ")[2]
        (folder / name).write_text(source.replace(f"return {wrong}", f"return {right[wrong]}"))
        assert await passes(str(folder)), source
        assert task["test"] == (folder / TEST).read_text()


@needs_landlock
def test_a_fenced_program_writes_below_its_folder_only(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("as it was")
    script = (
        f"echo a > a; mkdir d; mv a d/a; cd {outside}; echo b > b; echo c > kept; rm kept; mv {inside}/d/a a"
    )
    subprocess.run(
        fenced(str(inside), ["sh", "-c", f"sh -c '{script}'; cat {outside}/kept > {inside}/read"]),
        cwd=inside,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (inside / "read").read_text() == (outside / "kept").read_text() == "as it was"
    assert (inside / "d" / "a").read_text() == "a\n"
