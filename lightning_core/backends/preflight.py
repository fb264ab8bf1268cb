"""What a run would be, in facts and checks: what a backend and the trainer say before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.errors import LightningError


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a plan."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold at the start."""

    name: str
    holds: bool | None
    """None: it can't be told here."""
    told: str
    """What was found, or what is wrong and what to do."""

    @property
    def verdict(self) -> str:
        """ "ok", "fails" or "unknown"."""
        return "unknown" if self.holds is None else "ok" if self.holds else "fails"


@dataclass(frozen=True, slots=True)
class Outline:
    """Facts and checks, each in an order to be read in."""

    facts: tuple[Fact, ...] = ()
    checks: tuple[Check, ...] = ()
    context: int | None = None
    """Tokens that a call may have in all; None: unknown."""

    def text(self) -> str:
        """As plain lines."""
        lines = [(fact.name, fact.value) for fact in self.facts]
        lines += [(check.name, f"{check.verdict}: {check.told}") for check in self.checks]
        width = max((len(name) for name, _ in lines), default=0)
        return "\n".join(f"{name:<{width}}  {told}" for name, told in lines)


def trial(name: str, attempt: Callable[[], str | None]) -> Check:
    """A check that holds unless `attempt` raises an error of this package; it returns what to say."""
    try:
        return Check(name, True, attempt() or "")
    except LightningError as problem:
        return Check(name, False, str(problem))


def gib(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / (1 << 30):.1f} GiB" if count >= (1 << 30) / 10 else f"{count / (1 << 20):.0f} MiB"


def many(count: int) -> str:
    """Parameters as people say them: 596.0 M, 8.19 B."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
