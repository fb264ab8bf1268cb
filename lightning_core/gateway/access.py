"""Who is calling: the rollout by its token, the agent and the call by name.

Two forms say the same. Headers, added by the instrumented SDK:

    Authorization: Bearer <token>      x-lightning-agent: <percent-encoded name>
    x-lightning-call: <id>             x-lightning-rollout: <id>   (only a cross-check)

or a base URL, for programs that can't be touched: `/rollouts/{rollout_id}/agents/{agent}/v1`. Where
both name an agent the header wins: the path speaks for a whole program, the header for one call.
Anthropic's clients send the token as `x-api-key`.

Requests without a token, where they are served, might come from a web page that somebody on this machine
looks at. The browser says so, and the page can't prevent it: `Origin` is the page's address, `Host` the name
that was looked up (the page's own, if its DNS points here), and JSON is what a page may not send unasked.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import Scope

from lightning_core.dialects.strict import short
from lightning_core.errors import AccessError, ApiError, DataError
from lightning_core.gateway.tokens import PREFIX, Grant, Tokens
from lightning_core.records.types import UNNAMED, Fork, Sampling, find_policy, matches
from lightning_core.stores.rules import check_id
from lightning_core.tracing.headers import (
    AGENT,
    API_KEY,
    AUTHORIZATION,
    AZURE_KEY,
    CALL,
    ROLLOUT,
    decode_name,
)

HOST: Final = "host"
ORIGIN: Final = "origin"
CONTENT_TYPE: Final = "content-type"


@dataclass(frozen=True, slots=True)
class Caller:
    """The one who makes a call."""

    call_id: str
    agent: str
    trained: bool
    rollout_id: str | None
    attempt: int | None
    sampling: Sampling | None
    """Imposed by the rollout; None leaves the app's own settings."""
    policy_version: int | None = None
    """The version of the weights that the rollout is pinned to."""
    seed: int | None = None
    """The rollout's, for trained and other agents."""
    prompt_versions: Mapping[str, int] = field(default_factory=dict)
    """Versions of the prompts that the rollout's agents get."""
    by_header: bool = False
    """Whether a header names the agent, which is more exact than any rule."""
    policy: str | None = None
    """The named policy that answers a trained agent; None: the run's own."""
    imposed: Sampling | None = None
    """The sampling that the rollout imposes on the calls of its trained agents."""

    @property
    def key(self) -> tuple[str | None, int | None, str]:
        """Equal for the retries of one call, different for any two calls."""
        return self.rollout_id, self.attempt, self.call_id

    @property
    def fork(self) -> Fork | None:
        """Where its rollout forks from a recorded one."""
        return None if self.imposed is None else self.imposed.fork


class Access:
    """Decides who may call."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        agents: tuple[str, ...] | None,
        anonymous: bool,
        hosts: tuple[str, ...] = (),
        policies: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`policies`: names or globs of trained agents, and the named policy that answers each."""
        self._tokens = tokens
        self._agents = agents
        self.policies = policies
        self._anonymous = anonymous
        self._listed = frozenset(name.lower() for name in hosts)
        self._hosts = self._listed | {"localhost", socket.gethostname().lower()}

    def admit_json(self, scope: Scope) -> Caller:
        """The same, for a request whose body is JSON: without a token it must say so."""
        caller = self.admit(scope)
        if caller.rollout_id is None:
            form = _headers(scope["headers"]).get(CONTENT_TYPE, "")
            if form.partition(";")[0].strip().lower() != "application/json":
                raise ApiError(
                    f"the content type is {form!r}; without a rollout's token send application/json",
                    status=415,
                    code="unsupported_media_type",
                )
        return caller

    def admit(self, scope: Scope) -> Caller:
        """The caller. Raises AccessError without a good token, ApiError for another rollout's, and for a
        request without a token that a web page may have sent."""
        headers = _headers(scope["headers"])
        path: dict[str, Any] = scope.get("path_params", {})
        claims = {name for name in (path.get("rollout_id"), headers.get(ROLLOUT)) if name}
        grant = self._grant(_token(headers), claims)
        agent = decode_name(headers.get(AGENT, "")) or path.get("agent") or UNNAMED
        if grant is None:
            self._check_no_page(headers)
            return Caller(uuid.uuid4().hex, agent, False, None, None, None)  # no id that another may have
        caller = Caller(
            call_id=_call_id(headers.get(CALL)),
            agent=agent,
            trained=False,
            rollout_id=grant.rollout_id,
            attempt=grant.attempt,
            sampling=None,
            policy_version=grant.policy_version,
            seed=grant.sampling.seed,
            prompt_versions=grant.prompt_versions,
            by_header=bool(headers.get(AGENT)),
            imposed=grant.sampling,
        )
        return self.named(caller, agent)

    def named(self, caller: Caller, agent: str) -> Caller:
        """The caller under an agent's name, which says whether it is trained."""
        trained = matches(agent, self._agents)
        sampling = caller.imposed if trained else None
        policy = find_policy(agent, self.policies) if trained else None
        return replace(caller, agent=agent, trained=trained, sampling=sampling, policy=policy)

    def _check_no_page(self, headers: dict[str, str]) -> None:
        """Raise ApiError for what a web page may have sent."""
        host, origin = headers.get(HOST, ""), headers.get(ORIGIN)
        name = _name(f"//{host}")
        if name not in self._hosts and not _is_address(name):
            raise _foreign("Host", host, name)
        if origin is not None and origin != f"http://{host}" and _name(origin) not in self._listed:
            raise _foreign("Origin", origin, _name(origin))

    def _grant(self, token: str, claims: set[str]) -> Grant | None:
        if self._anonymous and not claims and not token.startswith(PREFIX):
            return None
        if not token:
            raise AccessError(
                "the request has no API key; send its rollout's token as Authorization: Bearer or x-api-key"
            )
        grant = self._tokens.read(token)
        for rollout_id in claims:
            if rollout_id != grant.rollout_id:
                raise ApiError(
                    f"the API key does not open rollout {rollout_id!r}; use that rollout's own token",
                    status=403,
                    code="other_rollout",
                    kind="permission_error",
                )
        return grant


def _call_id(given: str | None) -> str:
    try:
        check_id(CALL, given or None)
    except DataError as error:
        raise ApiError(str(error), code="invalid_value", param=CALL) from error
    return given or uuid.uuid4().hex


_NAMES: Final = MappingProxyType(
    {
        name.encode(): name
        for name in (AUTHORIZATION, API_KEY, AZURE_KEY, ROLLOUT, AGENT, CALL, HOST, ORIGIN, CONTENT_TYPE)
    }
)


def _name(address: str) -> str:
    """The host in an address; empty if there is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Whether it is an IP address, which no DNS can point elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _foreign(header: str, value: str, name: str) -> ApiError:
    return ApiError(
        f"the {header} {short(value)} is not this gateway's own, and the request has no rollout's token; if "
        f"you trust it, start the gateway with --allow-host {name or 'NAME'}",
        status=403,
        code="foreign_host" if header == "Host" else "foreign_origin",
        kind="permission_error",
    )


def _token(headers: dict[str, str]) -> str:
    """The API key; of several, the one that is a token."""
    authorization = headers.get(AUTHORIZATION, "")
    bearer = authorization[7:] if authorization[:7].lower() == "bearer " else ""
    given = (bearer, headers.get(API_KEY, ""), headers.get(AZURE_KEY, ""))
    keys = [key for each in given if (key := each.strip())]
    return next((key for key in keys if key.startswith(PREFIX)), keys[0] if keys else "")


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {_NAMES[name]: value.decode("utf-8", "replace") for name, value in raw if name in _NAMES}
