"""Which agents have made calls, and whether `agents` names any that can't be among them.

A pattern that no call has matched may be misspelt, or it may name an agent that is seldom called. A rare
agent must not stop a run, so absence alone proves nothing. A pattern is refused
- at once if it looks like the name of an agent that was seen and that no pattern matches;
- after `PATIENCE` rollouts, or at the last step, if no other pattern has matched either. Until then nothing
  can have been learnt, so nothing is lost.
Otherwise it is said once in the log, and the run goes on. Agents that are served elsewhere count as seen, if
their calls pass the SDK of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from lightning_core.errors import UnknownAgentError
from lightning_core.tracing.scope import matches
from lightning_core.types import Call, Metrics

logger = logging.getLogger(__name__)

PATIENCE = 256
"""Rollouts: an agent that acts in one of fifty is missing from all of them in one run of 180."""
ALIKE = 0.82
"""Ratio of matching letters from which on two names look alike: two letters swapped in a name of six."""


class AgentNames:
    """The agents that were seen in a run so far."""

    def __init__(self, patterns: tuple[str, ...] | None) -> None:
        self.patterns = patterns
        self.seen: set[str] = set()
        self.rollouts = 0
        """Those that were looked through."""
        self._told: set[str] = set()

    def see(self, calls: Mapping[str, Sequence[Call]]) -> None:
        """Count the rollouts, and note who made their calls."""
        self.rollouts += len(calls)
        self.seen.update(call.agent for part in calls.values() for call in part)

    def remember(self, metrics: Iterable[Metrics]) -> None:
        """Note what the steps saw that were made before this process began."""
        for entry in metrics:
            self.rollouts += int(entry.values.get("rollouts", 0))
            called = (name for name in entry.values if name.startswith("agent/") and name.endswith("/calls"))
            self.seen.update(name.removeprefix("agent/").removesuffix("/calls") for name in called)

    def check(self, *, last: bool = False) -> None:
        """Raise UnknownAgentError if no agent was seen, or for a pattern that is refused; `last` is the last
        step."""
        if not self.seen:
            raise UnknownAgentError(
                "the first batch made no LLM call through the gateway: does the app use the OpenAI SDK, "
                "and does it run inside the function given to fit()?"
            )
        patterns = self.patterns or ()
        missing = [each for each in patterns if not any(matches(name, (each,)) for name in self.seen)]
        unmatched = len(missing) == len(patterns)
        for pattern in missing:
            meant = next((name for name in self._unclaimed() if _alike(name, pattern)), None)
            said = f"agents={list(patterns)!r}: no call so far came from {pattern!r}"
            if meant is not None:
                raise UnknownAgentError(f"{said}; {meant!r} was meant? {self._choice()}")
            if unmatched and (last or self.rollouts >= PATIENCE):
                raise UnknownAgentError(f"{said} in {self.rollouts} rollouts. {self._choice()}")
            if pattern not in self._told:
                self._told.add(pattern)
                logger.warning("%s; the run goes on. %s", said, self._choice())

    def _unclaimed(self) -> list[str]:
        """Agents that were seen and that no pattern matches."""
        return sorted(name for name in self.seen if not matches(name, self.patterns))

    def _choice(self) -> str:
        names = ", ".join(map(repr, sorted(self.seen)))
        return f"Agents seen: {names}. Use one of these names, or a glob that matches them"


def _alike(one: str, other: str) -> bool:
    """Whether one name may be the other, misspelt. Names that differ at their end or by an addition, like
    worker_1 and worker_2 or write and rewrite, are those of two agents."""
    one, other = one.lower(), other.lower()
    if one == other:
        return True
    apart = one in other or other in one or one[:-1] == other[:-1]
    return not apart and SequenceMatcher(None, one, other).ratio() >= ALIKE
