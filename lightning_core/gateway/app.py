"""The gateway: a server of OpenAI's and Anthropic's APIs that records every call with its exact token ids."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lightning_core.dialects import DIALECTS
from lightning_core.dialects.strict import short
from lightning_core.dialects.upstream import Upstream
from lightning_core.dialects.writing import ServedModel, TokenText
from lightning_core.errors import ApiError, GatewayError
from lightning_core.gateway.access import Access
from lightning_core.gateway.addresses import Addresses
from lightning_core.gateway.endpoint import Counter, Endpoint
from lightning_core.gateway.errors import api_error_of, refusal_of
from lightning_core.gateway.exchange import Exchanges
from lightning_core.gateway.forks import Forks
from lightning_core.gateway.naming import Naming
from lightning_core.gateway.otlp import Traces
from lightning_core.gateway.policies import PolicyRouter
from lightning_core.gateway.rewards import Rewards
from lightning_core.gateway.tokens import Tokens
from lightning_core.gateway.versions import Versioned, version_name
from lightning_core.prompts import PinnedPrompts
from lightning_core.stores.base import Store

_V1: Final = "/v1"
_TRACES: Final = "/v1/traces"
_OF_ROLLOUT: Final = "/rollouts/{rollout_id}/agents/{agent:path}"
"""Base URL of an agent of a rollout; the name may hold slashes once it is decoded."""
_OF_PROGRAM: Final = "/rollouts/{rollout_id}"
"""Base URL of a program that names its agents in its spans."""


class Gateway:
    """Serves one policy to any number of rollouts.

    `agents` are the names or globs of those being trained (None: all). With `anonymous`, requests
    without a token are served too, and recorded as belonging to no rollout; but none of a web page, unless
    its host, and the name by which it reaches the gateway, are among `hosts`. `prompts` are those of the run,
    put in place of what its agents say. `names` are its rules for calls that name no agent (see `naming`).
    The model is listed under the name `also_named` too. `policies` are names or globs of trained agents, and
    the named policy that answers each, which `upstream` serves beside the run's own.
    """

    def __init__(
        self,
        upstream: Upstream,
        store: Store,
        tokens: Tokens,
        *,
        agents: tuple[str, ...] | None,
        anonymous: bool = False,
        hosts: tuple[str, ...] = (),
        prompts: PinnedPrompts | None = None,
        also_named: str | None = None,
        names: Mapping[str, str] | None = None,
        policies: Mapping[str, str] | None = None,
    ) -> None:
        self.instance = uuid.uuid4().hex
        """Tells this gateway from an earlier one at the same address."""
        self._upstream = upstream
        self._access = Access(
            tokens, agents=agents, anonymous=anonymous, hosts=hosts, policies=policies or {}
        )
        self._exchanges = Exchanges(store)
        self._prompts = prompts
        self._also_named = also_named
        self._naming = Naming(names or {})
        self._forks = Forks(store)
        self._traces = Traces(self._access, store)
        self._rewards = Rewards(self._access, store)

    def app(self) -> Starlette:
        """The ASGI application."""
        parts = self._upstream, self._access, self._exchanges, self._prompts, self._naming, self._forks
        served: dict[str | None, Upstream] = {None: self._upstream}
        if isinstance(self._upstream, PolicyRouter):
            served.update(self._upstream.named)
        models = {name: ServedModel(up.model_name, TokenText(up.decode)) for name, up in served.items()}
        spoken = [dialect() for dialect in DIALECTS]
        endpoints: dict[str, ASGIApp] = {}
        for dialect in [*spoken, *(more for each in spoken for more in each.further())]:
            endpoint = endpoints[_V1 + dialect.path] = Endpoint(dialect, models, *parts)
            if dialect.counts is not None:
                endpoints[_V1 + dialect.path + dialect.counts] = Counter(endpoint)
        routes = [Route("/healthz", self._health), Route("/health", self._health)]
        for base in ("", _OF_ROLLOUT):
            routes += [Route(base + path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
            for kind in ("embeddings", "audio/{asked:path}", "images/{asked:path}"):
                routes.append(Route(f"{base}/v1/{kind}", self._other_model, methods=["POST"]))
            routes.append(Route(f"{base}/v1/models", self._models))
            routes.append(Route(f"{base}/v1/models/{{name:path}}", self._model))
        for base in ("", _OF_ROLLOUT, _OF_PROGRAM):
            routes.append(Route(base + _TRACES, self._traces, methods=["POST"]))
        routes.append(Route(f"{_OF_PROGRAM}/rewards", self._rewards, methods=["POST"]))
        return Starlette(
            routes=routes,
            middleware=[Middleware(Addresses)],
            exception_handlers={HTTPException: _refuse_http, GatewayError: _refuse, Exception: _refuse},
        )

    def abort(self) -> None:
        """End the calls on their way; they are recorded as cancelled. For the event loop of the app."""
        self._exchanges.abort()

    async def _health(self, request: Request) -> Response:
        said = {"status": "ok", "instance": self.instance, "model": self._upstream.model_name}
        return _json({**said, "calls": len(self._exchanges), "begun": self._exchanges.begun})

    async def _models(self, request: Request) -> Response:
        self._access.admit(request.scope)
        return _json({"object": "list", "data": await self._listed()})

    async def _model(self, request: Request) -> Response:
        self._access.admit(request.scope)
        asked = request.path_params["name"]
        for model in await self._listed():
            if model["id"] == asked:
                return _json(model)
        raise ApiError(
            f"there is no model {short(asked)} here; GET {_V1}/models lists those that there are",
            status=404,
            code="model_not_found",
        )

    async def _listed(self) -> list[dict[str, Any]]:
        names = [self._upstream.model_name]
        if isinstance(self._upstream, Versioned):
            names += [version_name(names[0], version) for version in await self._upstream.versions()]
        if isinstance(self._upstream, PolicyRouter):
            for policy, upstream in self._upstream.named.items():
                names += [policy, *(version_name(policy, each) for each in await upstream.versions())]
        if self._also_named is not None and self._also_named not in names:
            names.append(self._also_named)
        return [{"id": name, "object": "model", "created": 0, "owned_by": "lightning"} for name in names]

    async def _other_model(self, request: Request) -> Response:
        self._access.admit(request.scope)
        raise ApiError(
            f"{request.url.path} is not served: {self._upstream.model_name!r} reads and writes text; send "
            "embeddings, audio and images with a client whose base_url is the server of a model for them",
            status=404,
            code="unsupported_endpoint",
        )


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def _refuse(request: Request, error: Exception) -> Response:
    refusal = api_error_of(error)
    return _json(refusal_of(request.url.path, refusal), refusal.status)


def _refuse_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    asked = f"{request.method} {request.url.path}"
    calls = ", ".join(_V1 + dialect.path for dialect in DIALECTS)
    served = f"POST {calls}, {_TRACES}, {_OF_PROGRAM}/rewards and GET /v1/models"
    code = "method_not_allowed" if status == 405 else "unknown_endpoint"
    refusal = ApiError(
        f"{asked} is not served here (base URLs end in /v1); served are {served}", status=status, code=code
    )
    return _json(refusal_of(request.url.path, refusal), status)
