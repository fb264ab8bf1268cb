"""The code that README and docs show is code that runs."""

import multiprocessing
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.judge.reading import judging

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"replace-hosted.md", "write-an-adapter.md", "rest.md", "typescript.md"}
"""Pages whose blocks are files of one app (tests/packaging, tests/examples) or package (tests/testing), or
one session with a server (tests/api)."""
BLOCKS = [
    (page, code) for page in PAGES if page.name not in ELSEWHERE for code in BLOCK.findall(page.read_text())
]
HEAVY = [
    "matplotlib.pyplot",
    "openai.resources",
    "torch._dynamo",
    "torch.distributed.tensor",
    "transformers.modeling_utils",
    "transformers.models.auto",
]
"""Modules whose import is nine tenths of the time of a block that trains. None is of this project."""


def run_in_small(folder, judge_url):
    """In the process of one block: train for a step, and leave what is said in a file."""
    os.chdir(folder)
    with open("said.txt", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    sys.argv = ["block.py"]
    os.environ["JUDGE_URL"] = judge_url

    import lightning_core as lightning
    from lightning_core.trainer.launch import Launch, launching

    small = lightning.GRPO(group_size=2, tasks_per_step=2)
    settings = {"steps": 1, "algorithm": small, "folder": "run", "progress": False}
    with launching(Launch(settings)):
        runpy.run_path("block.py", run_name="__main__")


@pytest.fixture(scope="module")
def processes():
    """Makes processes that have nothing in them but the heavy libraries, imported once for all."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(HEAVY)
    return made


@pytest.fixture(scope="module")
def judge_url():
    """The endpoint of a judge who likes short answers."""
    with judging(lambda lines: 1 / (1 + len(lines[-1]["text"]))) as judge:
        yield judge.url


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=[page.name for page, _ in BLOCKS])
def test_a_code_block_runs_as_it_stands(page, code, tmp_path, judge_url, processes):
    # In a process of its own: a script leaves its clients open, and a later test would collect them.
    (tmp_path / "block.py").write_text(code)
    block = processes.Process(target=run_in_small, args=(tmp_path, judge_url))
    block.start()
    block.join()
    assert block.exitcode == 0, (tmp_path / "said.txt").read_text()
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
