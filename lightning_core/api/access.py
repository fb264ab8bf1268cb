"""Access: every request is admitted here, and every id that it names is checked here.

A caller of one run never reads or changes another run. A worker speaks only of attempts that it was given,
which the key of each lease proves; so workers may share a token and yet not end one another's rollouts.

A token has a scope, is for one run or for all, and expires. That of one run is signed with that run's
secret, which the store keeps; so every server of the store can check it, and a run with a new secret has no
valid tokens. A token of all runs is signed with a secret that only the servers of the API have. Both say for
which run they are, so that the right secret is asked.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from secrets import token_bytes
from typing import Annotated, Final, Literal, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from lightning_core.api.fields import FieldError, Held, Key
from lightning_core.errors import AccessError, ConfigError, LeaseLostError, NotFoundError, ScopeError
from lightning_core.gateway.tokens import Seal, claims_in
from lightning_core.records.types import Attempt, Member, Rollout, Run
from lightning_core.stores.base import Store
from lightning_core.stores.rules import holds

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
class RunGrant:
    """The rights of a token."""

    scope: Scope
    run_id: str | None
    """The run it is for; None for all."""
    expires_at: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The content of a lease's key: this worker was given this attempt."""

    run_id: str
    rollout_id: str
    attempt: int
    worker: str
    gateway_url: str | None = None
    """Where its app was sent; None if nowhere."""
    gateway_instance: str | None = None


def issue(secret: bytes, grant: RunGrant) -> str:
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


def read(secret: bytes, token: str) -> RunGrant:
    """Returns the token's rights. Raises AccessError if it was not signed with this secret, or has
    expired."""
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
    """Returns the secret that signs the tokens of this run. Raises AccessError if it has no secret."""
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


def _grant(claims: object) -> RunGrant:
    match claims:
        case [str() as scope, str() | None as run_id, int() | float() as expires_at] if scope in SCOPES:
            return RunGrant(scope, run_id, expires_at)
    raise AccessError("the token comes from another version of this package; issue it again")


_Address = tuple[str | None, int | None]
"""The address of a record: (rollout id, attempt)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request, and the store that it may use."""

    grant: RunGrant
    secret: bytes
    """The secret that signed the token, and signs the keys of its leases."""
    store: Store

    @property
    def admin(self) -> bool:
        return self.grant.scope == "admin"

    def run(self, run_id: str) -> str:
        """Returns the run's id. Raises ScopeError if the token is for another."""
        if self.grant.run_id not in (None, run_id):
            raise ScopeError(f"the token is for run {self.grant.run_id!r} and does not open run {run_id!r}")
        return run_id

    def one_or_all(self, run_id: str | None) -> str | None:
        """Returns the run's id, or the id of the token's run; None for all runs. Raises ScopeError as `run`
        does."""
        return self.grant.run_id if run_id is None else self.run(run_id)

    def check_names(self, rollouts: Sequence[Rollout]) -> None:
        """Raise FieldError for an id that a rollout of another run might bear: ids are of the whole store."""
        for place, rollout in enumerate(rollouts):
            if not self.admin and not rollout.id.startswith(run_prefix(rollout.run_id)):
                raise FieldError(
                    f"rollouts[{place}].id",
                    f"is {rollout.id!r}; ids of run {rollout.run_id!r} must begin with "
                    f"{run_prefix(rollout.run_id)!r}, so that none is taken from another run",
                )

    async def known_run(self, run_id: str) -> str:
        """Returns the id of a run in the store. Raises NotFoundError if it is not there."""
        if await self.store.find_run(self.run(run_id)) is None:
            raise NotFoundError(f"no run {run_id!r} in this store: a trainer makes it, or PUT /api/v1/runs")
        return run_id

    async def rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """These rollouts as they stand, all of runs that the token is for."""
        found = await self.store.get_rollouts(rollout_ids)
        for rollout in found:
            self.run(rollout.run_id)
        return found

    async def known(self, rollout_ids: Sequence[str], *, skip_unknown: bool) -> list[str]:
        """These ids, all of rollouts of runs that the token is for. Raises NotFoundError for one that is
        not in the store; with `skip_unknown` it is left out instead."""
        if skip_unknown and self.admin and self.grant.run_id is None:
            return list(rollout_ids)
        try:
            return [rollout.id for rollout in await self.rollouts(rollout_ids)]
        except NotFoundError:
            if not skip_unknown:
                raise
        return [known for one in rollout_ids for known in await self._known(one)]

    async def _known(self, rollout_id: str) -> list[str]:
        try:
            return [rollout.id for rollout in await self.rollouts([rollout_id])]
        except NotFoundError:
            return []

    async def attempts(self, keys: Sequence[Key]) -> list[Attempt]:
        """Returns the attempts of these keys of leases, whether or not they are still held."""
        leases = [self.lease_of(key) for key in keys]
        rollouts = await self.rollouts([lease.rollout_id for lease in leases])
        return [
            Attempt(rollout=rollout, number=lease.attempt, worker=lease.worker, lease_until=0.0)
            for lease, rollout in zip(leases, rollouts, strict=True)
        ]

    def lease_of(self, key: Key) -> Lease | Held:
        """Returns the lease of a key. Raises AccessError for a forged one."""
        if isinstance(key, str):
            return read_lease(self.secret, key)
        if not self.admin:
            raise ScopeError("only an admin names an attempt without proof; send the `key` of the lease")
        return key

    async def check_addresses(self, addresses: Iterable[_Address], keys: Sequence[Key]) -> None:
        """Raise unless the caller may add records there: a worker, to attempts that it holds."""
        wanted = dict.fromkeys(addresses)
        if self.admin and self.grant.run_id is None:
            wanted.pop((None, None), None)  # of no rollout, so of no run
        rollouts = await self.rollouts([_named(rollout_id) for rollout_id, _ in wanted])
        if self.admin:
            return
        held = {(lease.rollout_id, lease.attempt) for lease in map(self.lease_of, keys)}
        for address, rollout in zip(wanted, rollouts, strict=True):
            if address not in held:
                raise ScopeError(
                    f"none of the leases given is of attempt {address[1]} of rollout {rollout.id!r}; send "
                    "the `key` that came with it"
                )
            _check_held(rollout, address[1] or 0)


def run_prefix(run_id: str) -> str:
    """With what the ids of a run's rollouts begin that clients enqueue. Runs made here have no colon in their
    id, nor have those of trainers, so no prefix of a run is that of another."""
    return f"{run_id}:"


def _named(rollout_id: str | None) -> str:
    if rollout_id is None:
        raise NotFoundError("a record has no rollout_id; send the rollout that it belongs to")
    return rollout_id


def _check_held(rollout: Rollout, number: int) -> None:
    attempt = Attempt(rollout=rollout, number=number, worker="", lease_until=0.0)
    if not holds(attempt, rollout):
        raise LeaseLostError(
            f"attempt {number} of rollout {rollout.id!r} is not running any more (the rollout is "
            f"{rollout.status.value} after {rollout.attempts} attempts); drop what it made"
        )


_BEARER = HTTPBearer(auto_error=False, description="A token made by `agentlightning token`.")


async def admit(request: Request) -> Principal:
    """The sender of a request, by its headers alone. Raises AccessError without a good token."""
    bearer = await _BEARER(request)
    token = bearer.credentials if bearer is not None else ""
    store: Store = request.app.state.store
    run_id = run_of(token)
    if run_id is not None:
        run = await store.find_run(run_id)
        try:
            secret = secret_of(run, run_id)
        except AccessError:
            secret = token_bytes(32)  # refused like a forged one: strangers don't learn which runs there are
    else:
        secret = request.app.state.secret
        if secret is None:
            raise AccessError(
                f"the token is for all runs, but this server was started without {SECRET_NAME}; "
                "use a token of one run, or start the server with it"
            )
    return Principal(read(secret, token), secret, store)


async def _admitted(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> Principal:
    """Whom the route has admitted; the header is named for the OpenAPI document."""
    caller: Principal = request.state.caller
    return caller


def _needs(*scopes: Scope) -> Callable[[Principal], Awaitable[Principal]]:
    async def admitted(caller: Annotated[Principal, Depends(_admitted)]) -> Principal:
        if caller.grant.scope not in (*scopes, "admin"):
            raise ScopeError(
                f"the token's scope is {caller.grant.scope!r}; this needs {' or '.join((*scopes, 'admin'))}"
            )
        return caller

    return admitted


Client = Annotated[Principal, Depends(_needs("client"))]
Worker = Annotated[Principal, Depends(_needs("worker"))]
Admin = Annotated[Principal, Depends(_needs())]
Anyone = Annotated[Principal, Depends(_needs("worker", "client"))]
