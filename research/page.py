"""Where the results of studies go: a page, its plots, and the records that both are made of."""

from __future__ import annotations

from pathlib import Path

RECORDS = Path("research/results")
PAGE = RECORDS / "README.md"
