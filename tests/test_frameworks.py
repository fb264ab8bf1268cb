"""In each framework the diff is one line: the page shows it, the script has it, the app knows nothing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/frameworks.md").read_text()
SECTION = re.compile(r"```diff\n(.*?)```\s+From \[examples/(\w+)\]", re.DOTALL)
DIFFS = {example: diff.splitlines() for diff, example in SECTION.findall(PAGE)}
PLUGINS = {
    "sql": "lightning_langgraph",
    "calc": "lightning_autogen",
    "rag": "lightning_openai_agents",
    "crew": "lightning_crewai",
}


def test_every_framework_has_its_diff():
    assert DIFFS.keys() == PLUGINS.keys()


@pytest.mark.parametrize("example", PLUGINS)
def test_the_script_differs_from_a_plain_one_by_that_line_and_its_import(example):
    (added,) = [line[1:] for line in DIFFS[example] if line.startswith("+")]
    removed = [line[1:] for line in DIFFS[example] if line.startswith("-")]
    assert len(removed) <= 1
    lines = (ROOT / "examples" / example / "train.py").read_text().splitlines()
    assert lines.count(added) == 1
    (imported,) = [line for line in lines if PLUGINS[example] in line]
    name = imported.rpartition(" ")[2]
    at = lines.index(added)
    plain = [line for line in [*lines[:at], *removed, *lines[at + 1 :]] if line != imported]
    compile("\n".join(plain), example, "exec")
    assert [line for line in plain if name in line] == []


@pytest.mark.parametrize("example", [*PLUGINS, "plain"])
def test_the_app_knows_nothing_of_the_project(example):
    apps = [path for name in ("app.py", "agent.py") if (path := ROOT / "examples" / example / name).exists()]
    assert apps
    assert not any("lightning" in path.read_text().lower() for path in apps)
