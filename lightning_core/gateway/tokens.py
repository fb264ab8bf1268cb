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
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

from lightning_core.errors import AccessError, ConfigError
from lightning_core.records.types import Fork, Rollout, Sampling

PREFIX = "lt-"
"""Every token starts so; an API key of another house does not."""
GRACE_SECONDS = 86_400.0
"""How much longer than its attempt's time-out a token lasts: the attempt may wait for a place, and clocks
differ. It only bounds how long a lost token is of use: calls of an ended attempt are refused at once."""
_SHORTEST_SECRET = 16


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a token: to make the calls of one attempt."""

    rollout_id: str
    attempt: int
    sampling: Sampling
    """Imposed on the calls of trained agents."""
    policy_version: int | None = None
    """The version of the weights that must answer; None: the current one."""
    prompt_versions: dict[str, int] = field(default_factory=dict)
    """Versions of the prompts that its agents get."""


def expiry(timeout: float | None) -> float | None:
    """When the token of an attempt that begins now expires, in Unix seconds; None without a time-out."""
    return None if timeout is None else time.time() + timeout + GRACE_SECONDS


class Tokens:
    """Issues tokens and reads them back."""

    def __init__(self, secret: bytes) -> None:
        self._seal = Seal(secret, PREFIX)

    def issue(self, rollout: Rollout, attempt: int, *, expires_at: float | None = None) -> str:
        """A token for that attempt; after `expires_at` (unix seconds) it opens nothing.

        An attempt after one that failed draws other random numbers. One after an attempt that was lost with
        its worker draws the same, so that a lost machine changes nothing in a run.
        """
        sampling, seed = rollout.sampling, rollout.sampling.seed
        if seed is not None and rollout.error is not None:
            seed = (seed + attempt) % 2**63
        fork = None if sampling.fork is None else [sampling.fork.rollout_id, sampling.fork.call_id]
        drawn = sampling.temperature, sampling.top_p, seed, sampling.constrain, fork
        versions = rollout.policy_version, rollout.prompt_versions
        return self._seal.close([rollout.id, attempt, *drawn, *versions, expires_at])

    def read(self, token: str) -> Grant:
        """Returns the token's rights. Raises AccessError if it was not issued with this secret, or has
        expired."""
        claims = self._seal.open(token)
        if claims is None:
            raise AccessError("the API key is not a token of this gateway; use the one its rollout was given")
        try:
            rollout_id, attempt, temperature, top_p, seed, constrain, forked, *versions, expires_at = claims
            policy_version, prompt_versions = versions
            fork = None if forked is None else Fork(rollout_id=forked[0], call_id=forked[1])
        except (TypeError, ValueError) as error:
            raise AccessError(
                "the token comes from another version of this package; issue it again"
            ) from error
        if expires_at is not None and time.time() > expires_at:
            raise AccessError(f"the token of rollout {rollout_id!r} has expired; start a new attempt")
        sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed, constrain=constrain, fork=fork)
        return Grant(rollout_id, attempt, sampling, policy_version, prompt_versions)


# signatures -------------------------------------------------------------------------------------------
class Seal:
    """Signs claims with one secret for one purpose, which the prefix names.

    Whoever shares the secret can check them. The signature covers the prefix too: what was signed for one
    purpose opens nothing of another, though both may be signed with the secret of one run.
    """

    def __init__(self, secret: bytes, prefix: str) -> None:
        if len(secret) < _SHORTEST_SECRET:
            raise ConfigError(
                f"the secret that signs tokens has {len(secret)} bytes; give at least {_SHORTEST_SECRET}, "
                "for example secrets.token_bytes(32)"
            )
        self._secret = secret
        self._prefix = prefix

    def close(self, claims: Any) -> str:
        """The claims as one word that may stand in a header or an environment variable."""
        payload = urlsafe_b64encode(orjson.dumps(claims)).decode()
        return f"{self._prefix}{payload}.{self._signature(payload)}"

    def open(self, sealed: str) -> Any | None:
        """The claims; None if they were not sealed with this secret under this prefix."""
        payload, _, signature = sealed.removeprefix(self._prefix).partition(".")
        if not (sealed.isascii() and sealed.startswith(self._prefix)) or not hmac.compare_digest(
            signature.encode(), self._signature(payload).encode()
        ):
            return None
        return read_claims(payload)

    def _signature(self, payload: str) -> str:
        return urlsafe_b64encode(
            hmac.digest(self._secret, (self._prefix + payload).encode(), sha256)
        ).decode()


def claims_in(sealed: str, prefix: str) -> Any:
    """Returns the unchecked claims of a sealed word: only to find the secret that it is to be opened with.

    Raises AccessError if it says nothing.
    """
    return read_claims(sealed.removeprefix(prefix).partition(".")[0])


def read_claims(payload: str) -> Any:
    """Raises AccessError for what is no payload."""
    try:
        return orjson.loads(urlsafe_b64decode(payload))
    except (binascii.Error, ValueError) as error:
        raise AccessError("the token comes from another version of this package; issue it again") from error
