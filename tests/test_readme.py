"""The code that README and docs show is code that runs."""

import gc
import re
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.trainer.trainer import overrides
from tests.instrumenting import bare_afterwards

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [(page, code) for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.fixture(autouse=True)
def tidy():
    """What a script leaves behind goes with it: here several run in one process."""
    with bare_afterwards():
        yield
    gc.collect()


# a script's clients outlive its event loop, and say so when they are collected
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=[page.name for page, _ in BLOCKS])
def test_a_code_block_runs_as_it_stands(page, code, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)
    small = lightning.GRPO(group_size=2, tasks_per_step=2)
    with overrides({"steps": 1, "algorithm": small, "folder": tmp_path / "run", "progress": False}):
        exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
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
