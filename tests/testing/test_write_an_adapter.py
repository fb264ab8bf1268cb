"""The adapter that docs/plugins/write-an-adapter.md builds: short, installable, and obedient."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing.copies import ROOT, install, run_suite

PAGE = ROOT / "docs" / "plugins" / "write-an-adapter.md"
FILE = re.compile(r"^`(\S+)`\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLUGIN = ROOT / "plugins" / "pydantic_ai"
DOCSTRING = re.compile(r'^ *"""(.*?)"""$', re.DOTALL | re.MULTILINE)
FILES = dict(FILE.findall(PAGE.read_text()))


def test_every_block_of_code_is_a_file() -> None:
    assert list(FILES) == [
        "pyproject.toml",
        "src/lightning_pydantic_ai/__init__.py",
        "src/lightning_pydantic_ai/agents.py",
        "tests/test_conformance.py",
    ]
    assert PAGE.read_text().count("```") == 2 * len(FILES)


def test_it_is_the_projects_own_plugin() -> None:
    files = {name: text for name, text in FILES.items() if name != "pyproject.toml"}
    assert files == {name: (PLUGIN / name).read_text() for name in files}
    assert {name for name in files if name.startswith("src/")} == {
        str(path.relative_to(PLUGIN)) for path in PLUGIN.glob("src/*/*.py")
    }


@pytest.mark.parametrize("name", ["pydantic_ai", "smolagents"])
def test_such_an_adapter_has_less_than_a_hundred_lines_of_code(name: str) -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "plugins" / name).glob("src/*/*.py"))
    lines = [line for line in DOCSTRING.sub("", code).splitlines() if line.strip()]
    assert 30 < len(lines) < 100


def test_it_installs_and_obeys_every_law(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="it is in the extra `dev`")
    for name, text in FILES.items():
        (tmp_path / "adapter" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "adapter" / name).write_text(text)
    install(tmp_path / "adapter", tmp_path / "site")
    outcomes, report = run_suite(tmp_path / "adapter", tmp_path / "site")
    assert set(outcomes) == {"PASSED"}, report
    assert len(outcomes["PASSED"]) >= 15
