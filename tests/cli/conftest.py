"""The command `agentlightning` in the test's own process."""

from __future__ import annotations

import pytest

from tests.build import agentlightning


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The command in this process and in an empty folder; returns its status and what it printed."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str]:
        status = agentlightning(*arguments)
        said = capsys.readouterr()
        return status, said.out + said.err

    return call
