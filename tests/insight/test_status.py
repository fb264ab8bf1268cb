"""The state of a run: one answer for the list, the page and the terminal."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from lightning_core.insight.status import is_served, state_of
from lightning_core.records.types import Member, Role, Run

HERE = socket.gethostname()


def member(role: Role = "trainer", *, host: str = HERE, age: float = 0.0) -> Member:
    """Last seen so many seconds ago."""
    return Member(run_id="r", role=role, name=role, data={"host": host}, seen_at=time.time() - age)


@pytest.mark.parametrize(
    ("status", "members", "held", "expected"),
    [
        ("running", [], True, "running"),
        ("running", [], False, "killed"),
        ("running", [{}], None, "running"),
        ("running", [{"age": 60.0}], None, "killed"),
        ("running", [{}], False, "killed"),  # the lock knows at once, the heartbeat in 20 s
        ("running", [{"host": "elsewhere"}], False, "running"),
        ("stopped", [], False, "stopped"),
        ("stopped", [{}], True, "stopping"),
        ("failed", [{}], True, "stopping"),
        ("stopped", [], True, "stopped"),  # it is about to be resumed
        ("finished", [{}], True, "finished"),
    ],
)
def test_a_state_follows_from_record_heartbeat_and_lock(
    status: Any, members: list[dict[str, Any]], held: bool | None, expected: str
) -> None:
    assert state_of(Run(id="r", status=status), [member(**each) for each in members], held) == expected


def test_a_run_that_is_not_recorded_has_not_started() -> None:
    assert state_of(None, [], None) == "not started"


def test_a_version_is_served_while_a_gateway_lives() -> None:
    assert is_served([member("gateway")])
    assert not is_served([member("gateway", age=60), member("trainer")])
