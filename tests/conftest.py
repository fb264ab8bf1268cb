"""The order of files: what trains and what starts processes comes first, so that no worker ends with it."""

from __future__ import annotations

import pytest
from hypothesis import settings

LONG = (
    "tests/trainer/test_crash.py",
    "tests/roles/",
    "tests/cli/test_cli.py",
    "tests/test_readme.py",
    "tests/testing/test_template.py",
    "tests/trainer/",
    "tests/examples/",
    "tests/recipes/",
    "tests/runner/",
    "tests/stores/",
    "tests/fuzz/",
    "tests/benchmarks/",
    "tests/cli/",
    "tests/air/",
    "tests/backends/",
)
"""In this order; then all others."""

settings.register_profile("any machine", deadline=None)  # a test asserts no time
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, p in enumerate(LONG) if item.nodeid.startswith(p)), len(LONG)))
