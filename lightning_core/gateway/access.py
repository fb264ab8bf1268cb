"""Who is calling: the rollout by its token, the agent and the call by name.

Two forms say the same. Headers, added by the instrumented SDK:

    Authorization: Bearer <token>      x-lightning-agent: <percent-encoded name>
    x-lightning-call: <id>             x-lightning-rollout: <id>   (only a cross-check)

or a base URL, for programs that can't be touched: `/rollouts/{rollout_id}/agents/{agent}/v1`. Where
both name an agent the header wins: the path speaks for a whole program, the header for one call.
Anthropic's clients send the token as `x-api-key`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from starlette.types import Scope

from lightning_core.errors import AccessError
from lightning_core.gateway.refusals import Refusal
from lightning_core.gateway.tokens import PREFIX, Grant, Tokens
from lightning_core.tracing.headers import AGENT, CALL, ROLLOUT, decode_name
from lightning_core.tracing.scope import matches
from lightning_core.types import UNNAMED, Sampling

AUTHORIZATION: Final = "authorization"
API_KEY: Final = "x-api-key"


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

    @property
    def key(self) -> tuple[str | None, int | None, str]:
        """Equal for the retries of one call, different for any two calls."""
        return self.rollout_id, self.attempt, self.call_id


class Access:
    """Decides who may call."""

    def __init__(self, tokens: Tokens, *, agents: tuple[str, ...] | None, anonymous: bool) -> None:
        self._tokens = tokens
        self._agents = agents
        self._anonymous = anonymous

    def admit(self, scope: Scope) -> Caller:
        """The caller. Raises AccessError without a good token, Refusal for another rollout's."""
        headers = _headers(scope["headers"])
        path: dict[str, Any] = scope.get("path_params", {})
        claims = {name for name in (path.get("rollout_id"), headers.get(ROLLOUT)) if name}
        grant = self._grant(_token(headers), claims)
        agent = decode_name(headers.get(AGENT, "")) or path.get("agent") or UNNAMED
        trained = grant is not None and matches(agent, self._agents)
        return Caller(
            call_id=headers.get(CALL) or uuid.uuid4().hex,
            agent=agent,
            trained=trained,
            rollout_id=grant.rollout_id if grant else None,
            attempt=grant.attempt if grant else None,
            sampling=grant.sampling if grant and trained else None,
            policy_version=grant.policy_version if grant else None,
        )

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
                raise Refusal(
                    f"the API key does not open rollout {rollout_id!r}; use that rollout's own token",
                    status=403,
                    code="other_rollout",
                    kind="permission_error",
                )
        return grant


_NAMES: Final = MappingProxyType(
    {name.encode(): name for name in (AUTHORIZATION, API_KEY, ROLLOUT, AGENT, CALL)}
)


def _token(headers: dict[str, str]) -> str:
    """The API key; of two, the one that is a token."""
    authorization, key = headers.get(AUTHORIZATION, ""), headers.get(API_KEY, "").strip()
    bearer = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
    return key if not bearer or (key.startswith(PREFIX) and not bearer.startswith(PREFIX)) else bearer


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {_NAMES[name]: value.decode("utf-8", "replace") for name, value in raw if name in _NAMES}
