"""Warnings of ADK and LiteLLM about their own code, which fail no test."""

from __future__ import annotations

import os

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network when it is imported

OWN = ("ignore::UserWarning", "ignore::DeprecationWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    for warning in OWN:
        item.add_marker(pytest.mark.filterwarnings(warning))
