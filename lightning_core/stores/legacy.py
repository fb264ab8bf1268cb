"""Records stored before they had some of their fields: `place` and `retry` of rollouts are read from the ids
of that time, once; calls have no `policy`."""

from __future__ import annotations

import re
from collections.abc import Iterable

ADDED = (
    "ALTER TABLE rollouts ADD COLUMN place {text}",
    "ALTER TABLE rollouts ADD COLUMN retry {int} NOT NULL DEFAULT 0",
)
POLICY = "ALTER TABLE calls ADD COLUMN policy {text}"
KEPT = "SELECT id, run_id, step, split FROM rollouts"


def planned_at(rollout_id: str, run_id: str, step: int, split: str) -> tuple[str | None, int]:
    """(place, retry) of a rollout, from its id; (None, 0) if the trainer of its run did not ask for it."""
    letter, place = ("t", r"\d+-\d+") if split == "train" else ("e", r"(?:sampled|greedy)-\d+")
    name = re.escape(f"{run_id}-{letter}{step}")
    found = re.fullmatch(rf"{name}(?:r(\d+))?-({place})", rollout_id)
    return (None, 0) if found is None else (found[2], int(found[1] or 0))


def filled(rows: Iterable[tuple[str, str, int, str]]) -> list[tuple[str, int, str]]:
    """(place, retry, id) of each planned rollout among the rows of `KEPT`."""
    found = ((planned_at(*row), row[0]) for row in rows)
    return [(place, retry, name) for (place, retry), name in found if place is not None]
