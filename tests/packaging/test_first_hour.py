"""The first hour of a stranger, spent as docs/first-hour.md tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.first_hour import STOCK, build, spend


@pytest.mark.timeout(2400)
def test_a_stranger_trains_changes_and_serves_an_app(tmp_path: Path) -> None:
    (stranger := tmp_path / "stranger").mkdir()
    build(tmp_path / "dist")
    hour = spend(tmp_path / "dist", stranger)
    for summary in hour.summaries.values():
        assert summary["failures"] == 0
        assert list(summary["agents"]) == ["triage"]
    starter = hour.summaries["starter"]
    assert starter["after"]["sampled"] > starter["before"]["sampled"] + 0.1
    assert "Improved" in hour.shown["starter"]
    assert hour.answers[STOCK["validation"][0]] in ("billing", "shipping", "account", "stock")
    assert hour.answers["a bare client"]
