"""The code that README and docs show is code that runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judge.reading import judging

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"write-an-adapter.md"}
"""Pages whose blocks are files of one package: tests/testing runs them as that."""
BLOCKS = [
    (page, code) for page in PAGES if page.name not in ELSEWHERE for code in BLOCK.findall(page.read_text())
]
IN_SMALL = """
import runpy, sys
import lightning_core as lightning
from lightning_core.trainer.trainer import overrides

small = lightning.GRPO(group_size=2, tasks_per_step=2)
with overrides({"steps": 1, "algorithm": small, "folder": "run", "progress": False}):
    runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def judge_url():
    """The endpoint of a judge who likes short answers."""
    with judging(lambda lines: 1 / (1 + len(lines[-1]["text"]))) as judge:
        yield judge.url


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=[page.name for page, _ in BLOCKS])
def test_a_code_block_runs_as_it_stands(page, code, tmp_path, judge_url):
    # In a process of its own: a script leaves its clients open, and a later test would collect them.
    (tmp_path / "block.py").write_text(code)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", IN_SMALL, "block.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "JUDGE_URL": judge_url},
    )
    assert done.returncode == 0, done.stderr
    if ".fit(" in code:
        assert (tmp_path / "run" / "summary.json").exists()


def test_the_readme_s_example_is_short():
    (code,) = BLOCK.findall((ROOT / "README.md").read_text())
    assert len([line for line in code.splitlines() if line.strip()]) <= 25


def test_the_app_knows_nothing_of_the_project_and_the_script_adds_one_line():
    app, script = ((ROOT / "examples/sql" / name).read_text() for name in ("app.py", "train.py"))
    assert "lightning" not in app.lower()
    assert [line for line in script.splitlines() if "LightningCallback(" in line] == [
        "graph = build_graph().with_config(callbacks=[LightningCallback()])"
    ]
    assert script.count("agents=[") == 1
