"""Help reads well on a narrow terminal."""

from __future__ import annotations

from itertools import pairwise

import pytest
from typer.testing import CliRunner

from lightning_core.cli.app import app


@pytest.mark.parametrize("verb", [["train"], ["worker"], ["gateway"], ["models", "rollback"]])
def test_help_fills_the_lines_of_a_narrow_terminal(verb: list[str]) -> None:
    """A paragraph's line ends where the next word would not fit, and nowhere else."""
    wide = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    lines = CliRunner().invoke(app, [*verb, "--help"], env=wide).output.splitlines()
    lines = [line.strip() for line in lines[: next(i for i, line in enumerate(lines) if "╭" in line)]]
    for line, following in pairwise(lines):
        if line and following and not line.startswith(("Usage", "agentlightning")):
            assert len(line) + 1 + len(following.split()[0]) > 78
