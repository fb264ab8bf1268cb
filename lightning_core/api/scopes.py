"""Tokens of the API: each has a scope, is for one run or for all, and expires.

A token of one run is signed with that run's secret, which the store keeps; so every server of the store can
check it, and a run with a new secret has no valid tokens. A token of all runs is signed with a secret that
only the servers of the API have. Both say for which run they are, so that the right secret is asked.
"""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass
from typing import Final, Literal, get_args

from lightning_core.errors import AccessError, ConfigError
from lightning_core.gateway.tokens import Seal, claims_in
from lightning_core.types import Member, Run

PREFIX: Final = "la-"
"""Every token of the API starts so."""
LEASE_PREFIX: Final = "ll-"
"""Every key of a lease starts so."""
MEMBER_PREFIX: Final = "lm-"
"""Every key of a member starts so."""
SECRET_NAME: Final = "LIGHTNING_API_SECRET"
"""The environment variable with the secret of tokens for all runs."""

Scope = Literal["worker", "client", "admin"]
"""`worker`: lease, and give an account of what it holds. `client`: enqueue and read. `admin`: everything."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows."""

    scope: Scope
    run_id: str | None
    """The run it is for; None for all."""
    expires_at: float


@dataclass(frozen=True, slots=True)
class Lease:
    """What the key of a lease proves: that this worker was given this attempt."""

    run_id: str
    rollout_id: str
    attempt: int
    worker: str
    gateway_url: str | None = None
    """Where its app was sent; None if nowhere."""
    gateway_instance: str | None = None


def issue(secret: bytes, grant: Grant) -> str:
    """A token that grants this."""
    return Seal(secret, PREFIX).close([grant.scope, grant.run_id, grant.expires_at])


def run_of(token: str) -> str | None:
    """For which run a token says it is, unchecked. Raises AccessError for what is no token."""
    if not token.startswith(PREFIX):
        raise AccessError(
            "the request has no token of this API; send one as Authorization: Bearer, made by: "
            "agentlightning token"
        )
    return _grant(claims_in(token, PREFIX)).run_id


def read(secret: bytes, token: str) -> Grant:
    """What the token grants. Raises AccessError if it was not signed with this secret, or has expired."""
    claims = Seal(secret, PREFIX).open(token)
    if claims is None:
        raise AccessError(
            "the token was not signed with the secret of a run in this store (a run with no secret has no "
            "tokens), or of this server; make another: agentlightning token"
        )
    grant = _grant(claims)
    if time.time() > grant.expires_at:
        raise AccessError("the token has expired; make another: agentlightning token")
    return grant


def lease_key(secret: bytes, lease: Lease) -> str:
    """The proof that a worker was given this lease."""
    return Seal(secret, LEASE_PREFIX).close(astuple(lease))


def read_lease(secret: bytes, key: str) -> Lease:
    """The lease of a key. Raises AccessError if it was not given with this secret."""
    claims = Seal(secret, LEASE_PREFIX).open(key)
    if claims is None:
        raise AccessError(
            "a key is not one of a lease that was given to this kind of token; send the `key` of the lease"
        )
    return Lease(*claims)


def member_key(secret: bytes, member: Member) -> str:
    """The proof that a worker is this member: of its run, role and name, and since when it is."""
    claims = [member.run_id, member.role, member.name, member.started_at]
    return Seal(secret, MEMBER_PREFIX).close(claims)


def secret_of(run: Run | None, run_id: str) -> bytes:
    """What signs the tokens of this run. Raises AccessError if it has no secret."""
    if run is None or not run.secret:
        raise AccessError(f"run {run_id!r} is not in this store, or has no secret to sign tokens with")
    try:
        return bytes.fromhex(run.secret)
    except ValueError:
        raise AccessError(f"the secret of run {run_id!r} is not hexadecimal, so it has no tokens") from None


def server_secret(text: str | None) -> bytes | None:
    """The secret of tokens for all runs, as it was set; None if it was not."""
    if not text:
        return None
    secret = text.strip().encode()
    try:
        Seal(secret, PREFIX)
    except ConfigError as error:
        raise ConfigError(f"{SECRET_NAME} is too short: {error}") from None
    return secret


def _grant(claims: object) -> Grant:
    match claims:
        case [str() as scope, str() | None as run_id, int() | float() as expires_at] if scope in SCOPES:
            return Grant(scope, run_id, expires_at)
    raise AccessError("the token comes from another version of this package; issue it again")
