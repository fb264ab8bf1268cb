"""The roles that other processes play: which may be, and what a person is told to start."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Final

from lightning_core.errors import ConfigError
from lightning_core.masking import without_password
from lightning_core.types import Role

ROLES: Final[tuple[Role, ...]] = ("gateway", "runner")
"""Those that can be played elsewhere; who trains is here."""
COMMANDS: Final[dict[Role, str]] = {
    "runner": "agentlightning worker {script} --store {store}",
    "gateway": "agentlightning gateway --store {store}",
}


def make_elsewhere(given: Sequence[str] | str, store: str | None) -> frozenset[Role]:
    """The roles that are played elsewhere. Raises ConfigError for what is no such role, or can't be met."""
    names = {given} if isinstance(given, str) else set(given)
    roles = frozenset(role for role in ROLES if role in names)
    if unknown := sorted(names.difference(ROLES)):
        raise ConfigError(f"elsewhere={unknown!r}: roles that can be played elsewhere are {', '.join(ROLES)}")
    if roles and (store or "").startswith("memory:"):
        raise ConfigError(
            f"store {store!r} is seen by no other process, so nobody can play {' or '.join(sorted(roles))} "
            "elsewhere; use 'sqlite:///runs.db' on one machine, 'postgresql://…' or 'redis://…' on several"
        )
    return roles


def command_for(role: Role, store: str) -> str:
    """What starts somebody who plays the role, as a line for a shell; without the store's password."""
    script, shown = sys.argv[0] or "SCRIPT", without_password(store)
    return COMMANDS[role].format(script=shlex.quote(script), store=shlex.quote(shown))
