"""The site of the pages: built as `make docs` does it, it is whole, and a dead link ends the build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]* (?:src|href)="(https?://[^"]+)"')
"""Addresses that a browser fetches by itself from elsewhere."""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(tmp_path / "site"): page.read_text() for page in tmp_path.rglob("*.html")}
    assert {name: LOADED.findall(text) for name, text in pages.items() if LOADED.findall(text)} == {}
    reference = pages[Path("reference.html")]
    assert "GRPO" in reference
    assert "Train on <code>train</code>, evaluate on" in reference  # from a docstring
    assert "/blob/main/lightning_core/starters/plain.py" in pages[Path("tutorials/plain.html")]
    assert "/blob/main/examples/sql/train.py" in pages[Path("frameworks.html")]


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](gone.md) [heading](#gone)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nhooks: []\nnav: [index.md]\n")
    built = build(config, tmp_path / "site")
    assert built.returncode != 0
    assert "gone.md" in built.stderr
    assert "#gone" in built.stderr
