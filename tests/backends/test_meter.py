"""Laws of a meter: it counts the time in which at least one span is open."""

from __future__ import annotations

from contextlib import suppress

import pytest

from lightning_core.backends import meter
from lightning_core.backends.meter import Meter


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's hand, to be set."""
    hand = [0.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: hand[0])
    return hand


def test_spans_that_overlap_count_once(now: list[float]) -> None:
    counted = Meter()
    with counted:
        now[0] = 2
        with counted:
            now[0] = 3
        now[0] = 5
    now[0] = 9
    with counted:
        now[0] = 10
    assert counted.seconds == 6


def test_an_open_span_counts_so_far(now: list[float]) -> None:
    counted = Meter()
    with counted:
        now[0] = 4
        assert counted.seconds == 4


def test_a_span_that_ends_with_an_error_has_ended(now: list[float]) -> None:
    counted = Meter()
    with suppress(ValueError), counted:
        now[0] = 1
        raise ValueError
    now[0] = 9
    assert counted.seconds == 1
