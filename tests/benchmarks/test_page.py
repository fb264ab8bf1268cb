"""A section of the page of results is written once, and the page says what the records say."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from benchmarks.page import insert
from benchmarks.stores.__main__ import Stores

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def test_what_a_transition_costs_is_what_its_record_says() -> None:
    record = json.loads((RESULTS / "verl_rows.json").read_text())
    speeds = next(row["values"] for row in record["rows"] if row["setting"] == "all")
    told = " / ".join(f"{1e6 / median(speeds[size]):.0f}" for size in ("1,000", "10,000", "100,000"))
    page = (RESULTS / "README.md").read_text()
    assert f"1,000 / 10,000 / 100,000 transitions | {told} µs |" in page


def test_a_section_is_made_once_and_then_filled_in_place() -> None:
    once = insert("# Results\n\nThe first.\n", Stores(), "first")
    twice = insert(once, Stores(), "second")
    assert twice == once.replace("first\n<!-- end", "second\n<!-- end")
    assert twice.count("## Stores and rollouts") == 1
    assert "\n    python -m benchmarks.stores\n" in twice
    assert twice.startswith("# Results\n\nThe first.\n\n## Stores and rollouts\n")
