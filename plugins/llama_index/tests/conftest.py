"""What LlamaIndex says about its own use of pydantic is no failure of a test."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
