"""Where the app of a leased rollout sends its calls: a gateway that answers, and a token for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lightning_core.api.scopes import Lease, secret_of
from lightning_core.errors import AccessError
from lightning_core.gateway.tokens import Tokens, expiry
from lightning_core.runner.config import read_config
from lightning_core.runner.gateways import (
    FRESH_SECONDS,
    Gateway,
    answering,
    choose,
    find_instance,
    gateways_among,
)
from lightning_core.stores.base import Store
from lightning_core.tracing.environment import variables
from lightning_core.types import Attempt


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out of a run."""

    expected: bool
    """Whether gateways said that they serve it, or a trainer opened it, so that one will."""
    answering: tuple[Gateway, ...]
    tokens: Tokens | None
    until: float


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the calls of an attempt go."""

    gateway: Gateway
    environment: dict[str, str]
    """The variables of its app."""


class Gateways:
    """Finds the gateways of runs, and believes what it found for some seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[str, _Known] = {}

    async def away(self, run_id: str) -> bool:
        """Whether the run has gateways, none of which answers: an app that is run now could only fail."""
        known = await self._look(run_id)
        return known.expected and not known.answering

    async def destination(self, attempt: Attempt, agent: str, timeout: float | None) -> Destination | None:
        """Where the calls of an attempt of so many seconds go; None if no gateway answers, or no secret signs
        tokens."""
        rollout = attempt.rollout
        known = await self._look(rollout.run_id)
        if not known.answering or known.tokens is None:
            return None
        gateway = choose(known.answering, rollout.id)
        token = known.tokens.issue(rollout, attempt.number, expires_at=expiry(timeout))
        return Destination(gateway, variables(gateway.url, rollout.id, token, agent))

    async def lost(self, lease: Lease) -> bool:
        """Whether the attempt's gateway does not answer, or is another one than when the attempt began: its
        failure says nothing of the app then."""
        if lease.gateway_url is None or await find_instance(lease.gateway_url) == lease.gateway_instance:
            return False
        self._runs.pop(lease.run_id, None)
        return True

    async def _look(self, run_id: str) -> _Known:
        now = time.monotonic()
        self._runs = {name: known for name, known in self._runs.items() if known.until > now}
        if run_id not in self._runs:
            self._runs[run_id] = await self._find(run_id)
        return self._runs[run_id]

    async def _find(self, run_id: str) -> _Known:
        members = gateways_among(await self._store.list_members(run_id))
        found = tuple(await answering(members))
        fresh = FRESH_SECONDS if found else 0.0  # one that comes back is to be seen at once
        tokens = await self._tokens(run_id) if found else None
        return _Known(bool(members) or await self._trained(run_id), found, tokens, time.monotonic() + fresh)

    async def _trained(self, run_id: str) -> bool:
        run = await self._store.find_run(run_id)
        return run is not None and read_config(run) is not None

    async def _tokens(self, run_id: str) -> Tokens | None:
        try:
            return Tokens(secret_of(await self._store.find_run(run_id), run_id))
        except AccessError:
            return None
