"""API tokens: each opens one attempt of one rollout, and nothing else.

A token carries what it grants and a signature over it, so that any gateway that shares the secret
can check it without asking the store. It is handed to the app as its API key: an app (or a tool
that the app runs) can therefore never read or write another rollout.
"""

from __future__ import annotations

import binascii
import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256

import orjson

from lightning_core.errors import AccessError, ConfigError
from lightning_core.types import Rollout, Sampling

PREFIX = "lt-"
"""Every token starts so; an API key of another house does not."""
_SHORTEST_SECRET = 16


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows: to make the calls of one attempt."""

    rollout_id: str
    attempt: int
    sampling: Sampling
    """Imposed on the calls of trained agents."""
    policy_version: int | None = None
    """The version of the weights that must answer trained agents; None: the current one."""


class Tokens:
    """Issues tokens and reads them back."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < _SHORTEST_SECRET:
            raise ConfigError(
                f"the secret that signs tokens has {len(secret)} bytes; give at least {_SHORTEST_SECRET}, "
                "for example secrets.token_bytes(32)"
            )
        self._secret = secret

    def issue(self, rollout: Rollout, attempt: int, *, expires_at: float | None = None) -> str:
        """A token for that attempt; after `expires_at` (unix seconds) it opens nothing."""
        sampling = rollout.sampling
        granted = rollout.id, attempt, sampling.temperature, sampling.top_p, rollout.policy_version
        payload = urlsafe_b64encode(orjson.dumps([*granted, expires_at]))
        return f"{PREFIX}{payload.decode()}.{self._signature(payload)}"

    def read(self, token: str) -> Grant:
        """What the token grants. Raises AccessError if it was not issued with this secret, or has expired."""
        payload, _, signature = token.removeprefix(PREFIX).partition(".")
        if not token.startswith(PREFIX) or not hmac.compare_digest(
            signature.encode(), self._signature(payload.encode()).encode()
        ):
            raise AccessError("the API key is not a token of this gateway; use the one its rollout was given")
        rollout_id, attempt, temperature, top_p, policy_version, expires_at = _unpack(payload)
        if expires_at is not None and time.time() > expires_at:
            raise AccessError(f"the token of rollout {rollout_id!r} has expired; start a new attempt")
        sampling = Sampling(temperature=temperature, top_p=top_p)
        return Grant(rollout_id, attempt, sampling, policy_version)

    def _signature(self, payload: bytes) -> str:
        return urlsafe_b64encode(hmac.digest(self._secret, payload, sha256)).decode()


def _unpack(payload: str) -> tuple[str, int, float, float, int | None, float | None]:
    try:
        rollout_id, attempt, temperature, top_p, policy_version, expires_at = orjson.loads(
            urlsafe_b64decode(payload)
        )
    except (binascii.Error, ValueError) as error:
        raise AccessError("the token comes from another version of this package; issue it again") from error
    return rollout_id, attempt, temperature, top_p, policy_version, expires_at
