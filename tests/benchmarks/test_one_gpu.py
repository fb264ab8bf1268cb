"""`scripts/gpu_check` on a processor, with the shipped model: each part ends well and has its rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.one_gpu.__main__ import SLOTS
from benchmarks.one_gpu.plans import lines
from benchmarks.one_gpu.table import markdown

ROOT = Path(__file__).parents[2]


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "scripts" / "gpu_check", "--device", "cpu", "--quick", "--folder", folder, *options]
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_all_parts_end_well_on_a_processor(tmp_path: Path) -> None:
    ended = check(tmp_path)
    parts = json.loads((tmp_path / "parts.json").read_text())
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(SLOTS, "done"), parts
    assert ended.returncode == 0
    rows = {
        name: json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        for name in SLOTS
        if name != "machine"
    }
    assert all(rows.values())
    assert [row for each in rows.values() for row in each if "error" in row] == []
    assert rows["training"][0]["status"] == "finished"
    # How much a pass takes differs by the machine's allocator, so none but the weights must come out alike.
    passes = [row["tokens a pass"] for row in rows["memory"]]
    assert passes == sorted(passes, reverse=True)
    assert {row["decoder"] for row in rows["engine-exact"]} == {"fused", "general"}
    for title in ("Replies: tokens a second", "Longest context that trains"):
        assert f"## {title}" in ended.stdout


def test_a_part_that_has_no_time_or_fails_does_not_end_the_rest(tmp_path: Path) -> None:
    ended = check(tmp_path, "--device", "cuda:7", "--only", "machine", "update", "--seconds", "300")
    parts = json.loads((tmp_path / "parts.json").read_text())
    assert ended.returncode == 1
    assert [part["status"] for part in parts.values()] == ["failed with status 1"] * 2
    assert "there is no CUDA device here" in markdown(tmp_path)


def test_the_page_shows_what_the_dry_run_estimates() -> None:
    page = (ROOT / "docs" / "one-gpu.md").read_text()
    shown = page.partition("<!-- plans -->\n")[2].partition("<!-- end of plans -->")[0]
    assert shown.splitlines() == list(lines())
