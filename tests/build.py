"""Makers that tests of several parts share."""

from __future__ import annotations

import sys

import pytest

from lightning_core.cli import main


def agentlightning(*words: object) -> int:
    """Run the command in this process; returns its exit status. An exception but SystemExit goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", ["agentlightning", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
