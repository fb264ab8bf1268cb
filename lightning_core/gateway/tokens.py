"""API tokens: each opens one attempt of one rollout, and nothing else.

A token carries what it grants and a signature over it, so that any gateway that shares the secret
can check it without asking the store. It is handed to the app as its API key: an app (or a tool
that the app runs) can therefore never read or write another rollout.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from lightning_core.errors import AccessError
from lightning_core.gateway.signing import Seal
from lightning_core.types import Rollout, Sampling

PREFIX = "lt-"
"""Every token starts so; an API key of another house does not."""
GRACE_SECONDS = 86_400.0
"""How much longer than its attempt's time-out a token lasts: the attempt may wait for a place, and clocks
differ. It only bounds how long a lost token is of use: calls of an ended attempt are refused at once."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows: to make the calls of one attempt."""

    rollout_id: str
    attempt: int
    sampling: Sampling
    """Imposed on the calls of trained agents."""
    policy_version: int | None = None
    """The version of the weights that must answer; None: the current one."""


def expiry(timeout: float | None) -> float | None:
    """When the token of an attempt that begins now expires, in Unix seconds; None without a time-out."""
    return None if timeout is None else time.time() + timeout + GRACE_SECONDS


class Tokens:
    """Issues tokens and reads them back."""

    def __init__(self, secret: bytes) -> None:
        self._seal = Seal(secret, PREFIX)

    def issue(self, rollout: Rollout, attempt: int, *, expires_at: float | None = None) -> str:
        """A token for that attempt; after `expires_at` (unix seconds) it opens nothing."""
        sampling = rollout.sampling
        granted = rollout.id, attempt, sampling.temperature, sampling.top_p, rollout.policy_version
        return self._seal.close([*granted, expires_at])

    def read(self, token: str) -> Grant:
        """What the token grants. Raises AccessError if it was not issued with this secret, or has expired."""
        claims = self._seal.open(token)
        if claims is None:
            raise AccessError("the API key is not a token of this gateway; use the one its rollout was given")
        rollout_id, attempt, temperature, top_p, policy_version, expires_at = _unpack(claims)
        if expires_at is not None and time.time() > expires_at:
            raise AccessError(f"the token of rollout {rollout_id!r} has expired; start a new attempt")
        sampling = Sampling(temperature=temperature, top_p=top_p)
        return Grant(rollout_id, attempt, sampling, policy_version)


def _unpack(claims: Any) -> tuple[str, int, float, float, int | None, float | None]:
    try:
        rollout_id, attempt, temperature, top_p, policy_version, expires_at = claims
    except (TypeError, ValueError) as error:
        raise AccessError("the token comes from another version of this package; issue it again") from error
    return rollout_id, attempt, temperature, top_p, policy_version, expires_at
