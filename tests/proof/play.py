"""One row of the proof: an app of one framework, in one shape, run in one way."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from lightning_core.records.types import Call
from lightning_core.testing.truth import find_marks, mark

Run = Callable[[str], Awaitable[None] | None]
"""Runs the app once in the rollout of that name: a coroutine on the loop, or a plain call in a thread."""


@dataclass(frozen=True, slots=True)
class Play:
    """An app, how it is run, and what it should come to."""

    framework: str
    topology: str
    way: str
    """How it is entered, such as "astream" or "threads"."""
    run: Run
    calls: Mapping[str, int]
    """Completed calls of each agent in one run."""
    abandoned: Mapping[str, int] = field(default_factory=dict)
    """Calls of each agent in one run that the app gives up midway."""
    noticed: int = 0
    """Calls in one run that can't be recorded, and must be noticed."""

    @property
    def threads(self) -> bool:
        """Whether it runs in a thread rather than on the loop."""
        return not inspect.iscoroutinefunction(self.run)

    def expected(self, repeats: int) -> Counter[tuple[str, str]]:
        """How many calls a rollout should have recorded, by agent and status."""
        counts: Counter[tuple[str, str]] = Counter()
        for status, per_agent in (("completed", self.calls), ("cancelled", self.abandoned)):
            counts.update({(name, status): count * repeats for name, count in per_agent.items()})
        return counts


def prompt(rollout: str, agent: str, **marks: object) -> list[dict[str, str]]:
    """Chat messages that say who truly calls."""
    return [{"role": "user", "content": mark(rollout=rollout, agent=agent, **marks)}]


def read_marks(call: Call) -> dict[str, str]:
    """Returns the marks in the prompt of a call, in whichever dialect; of equal names the last one counts."""
    return find_marks(json.dumps(call.request, ensure_ascii=False))
