"""The adapter that docs/plugins/write-an-adapter.md builds: short, installable, and obedient."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing.copies import ROOT, install, run_suite

PAGE = ROOT / "docs" / "plugins" / "write-an-adapter.md"
FILE = re.compile(r"^`(\S+)`\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILES = dict(FILE.findall(PAGE.read_text()))
UNNAMED = """
import asyncio

import lightning_core
from lightning_core.tracing.scope import Scope, rollout_scope
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel


def look_up(word: str) -> str:
    return word


def test_the_tool_of_an_agent_without_a_name_runs_and_is_reported():
    [agent] = [lightning_core.attach(Agent(TestModel(), tools=[look_up]))]
    scope = Scope("r1", 1, "http://127.0.0.1:9", "token")
    with rollout_scope(scope):
        asyncio.run(agent.run("Do it.", infer_name=False))
    assert [(event.name, event.agent, event.error) for event in scope.seen] == [("look_up", "unnamed", None)]
"""


def test_every_block_of_code_is_a_file() -> None:
    assert list(FILES) == [
        "pyproject.toml",
        "src/lightning_pydantic_ai/__init__.py",
        "src/lightning_pydantic_ai/agents.py",
        "tests/test_conformance.py",
    ]
    assert PAGE.read_text().count("```") == 2 * len(FILES)


def test_the_adapter_has_less_than_sixty_lines_of_code() -> None:
    code = "\n".join(text for name, text in FILES.items() if name.startswith("src/"))
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith('"""')]
    assert 30 < len(lines) < 60


def test_it_installs_and_obeys_every_law(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="it is in the extra `dev`")
    for name, text in FILES.items():
        (tmp_path / "adapter" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "adapter" / name).write_text(text)
    (tmp_path / "adapter" / "tests" / "test_unnamed.py").write_text(UNNAMED)
    install(tmp_path / "adapter", tmp_path / "site")
    outcomes, report = run_suite(tmp_path / "adapter", tmp_path / "site")
    assert set(outcomes) == {"PASSED"}, report
    assert len(outcomes["PASSED"]) >= 16
    assert "test_the_tool_of_an_agent_without_a_name_runs_and_is_reported" in outcomes["PASSED"]
