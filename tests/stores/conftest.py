"""Stores for the laws: every implementation, open and empty, behind one fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightning_core.stores.base import Store
from lightning_core.stores.memory import MemoryStore
from lightning_core.stores.sqlite import SqliteStore

KINDS = ("memory", "sqlite")


def make_store(kind: str, folder: Path) -> Store:
    """A store of that kind which nobody else uses; it never polls, so only its own news can wake it."""
    if kind == "sqlite":
        return SqliteStore(f"sqlite:///{folder / 'runs.db'}", poll_seconds=600)
    return MemoryStore("memory://")


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with make_store(request.param, tmp_path) as opened:
        yield opened
