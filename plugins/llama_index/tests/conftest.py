"""Warnings of LlamaIndex about its own use of pydantic, which fail no test."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
