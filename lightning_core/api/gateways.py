"""Where the app of a leased rollout sends its calls: the run's gateway, as the store knows it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from lightning_core.api.scopes import secret_of
from lightning_core.gateway.tokens import Tokens
from lightning_core.stores.base import Store
from lightning_core.tracing.environment import variables
from lightning_core.types import Attempt, Member

ALIVE_SECONDS: Final = 60.0
"""A gateway that was last seen so much earlier than another one is taken for dead."""


class Gateways:
    """Finds gateways for one request: of each run it asks the store once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[Tokens, list[str]] | None] = {}

    async def environment(self, attempt: Attempt, agent: str) -> dict[str, str] | None:
        """The variables of the attempt's app; None if the run has no gateway, or no secret for its tokens."""
        rollout = attempt.rollout
        if rollout.run_id not in self._known:
            self._known[rollout.run_id] = await self._find(rollout.run_id)
        known = self._known[rollout.run_id]
        if known is None:
            return None
        tokens, urls = known
        url = urls[zlib.crc32(rollout.id.encode()) % len(urls)]
        return variables(url, rollout.id, tokens.issue(rollout, attempt.number), agent)

    async def _find(self, run_id: str) -> tuple[Tokens, list[str]] | None:
        urls = alive(await self._store.list_members(run_id))
        run = await self._store.find_run(run_id)
        if not urls or run is None or not run.secret:
            return None
        return Tokens(secret_of(run, run_id)), urls


def alive(members: Sequence[Member]) -> list[str]:
    """The addresses of the gateways that were seen lately; rollouts are spread over them."""
    gateways = [member for member in members if member.role == "gateway" and member.url]
    latest = max((member.seen_at for member in gateways), default=0.0)
    return [str(member.url) for member in gateways if member.seen_at >= latest - ALIVE_SECONDS]
