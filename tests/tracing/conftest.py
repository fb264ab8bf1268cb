from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    """Where routed calls arrive."""
    with serving() as server:
        yield server


@pytest.fixture
def hosted() -> Iterator[GatewayDouble]:
    """An endpoint that the app itself names."""
    with serving() as server:
        yield server


@pytest.fixture
def tagging() -> Iterator[None]:
    """Requests are tagged; no plugin knows who calls."""
    with instrument(lambda: None):
        yield
