"""The choke point: every request that an SDK builds passes here, in the caller's own context.

`BaseClient._build_request` makes the HTTP request of each attempt, sync and async, for every kind of
call, under the same name in openai 2.x (on httpx) and 3.x (on httpx2), and in anthropic, whose SDK is
made by the same generator (`Sdk` says what differs). Inside a rollout a request is either *routed*, sent
to the gateway with the rollout's token and three headers that say whose it is, or left exactly as the app
made it: a hosted endpoint sees nothing of ours, and `observed` records the call. An address in the
gateway's path form says itself which rollout and agent it is of; where that is the running rollout, it stays.

The call id is the idempotency key that `request()` mints for each call and repeats on its retries.
An app that sets that key itself says with it which requests are one call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType, TracebackType
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from lightning_core.dialects import find_dialect
from lightning_core.errors import InstrumentationError
from lightning_core.prompts import put_in
from lightning_core.tracing import headers, observed, spans, unseen
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.patching import patch
from lightning_core.tracing.routing import SDKS, Puller, Sdk, at_gateway, route
from lightning_core.tracing.scope import Scope, carry_into_threads, current_scope
from lightning_core.tracing.unseen import name_caller

log = logging.getLogger(__name__)

_NEEDED = ("_build_request", "_idempotency_key")
_KEY_PREFIX = "stainless-python-retry-"


class Instrumentation:
    """The tagging of one process, until `uninstall()`. Any number may be open at once."""

    def __init__(self, who: Puller) -> None:
        self._who = who
        self._undo: list[Callable[[], None]] = []

    def install(self) -> Instrumentation:
        """Tag from now on; an SDK that the app has not imported yet, from its import on."""
        if self._undo:
            return self
        self._undo += [carry_into_threads(), spans.install(_span_processor)]
        hooks = [WhenImported(name, self._listen) for name in observed.CLIENTS]
        hooks += [WhenImported(name, self._watch) for name in (*unseen.LIBRARIES, *unseen.CACHES)]
        hooks += [WhenImported(sdk.module, partial(self._patch, sdk)) for sdk in SDKS]
        self._undo += [hook.stop for hook in hooks]
        try:
            for hook in hooks:
                hook.start()
        except InstrumentationError:
            self.uninstall()
            raise
        return self

    def uninstall(self) -> None:
        """Take everything back; a second time does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Instrumentation:
        return self.install()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()

    def _listen(self, module: ModuleType) -> None:
        self._undo += observed.install(module, self._who, unseen.meet_httpx)

    def _watch(self, module: ModuleType) -> None:
        self._undo += unseen.install(module, self._who)

    def _patch(self, sdk: Sdk, module: ModuleType) -> None:
        owner = _require(sdk, module)
        self._undo.append(patch(owner, "_build_request", self._who, partial(_build_request, sdk)))


def _span_processor() -> Any:
    """OpenTelemetry is imported only once the app has imported it."""
    from lightning_core.tracing.otel import LightningSpanProcessor

    return LightningSpanProcessor()


def instrument(who: Puller) -> Instrumentation:
    """Tag and route the requests of every OpenAI and Anthropic client in this process, old and new.

    `who` names the caller of frameworks; `agent(...)` blocks and spans of OpenTelemetry are known without
    it. Raises InstrumentationError if the installed SDK offers no place for it.
    """
    return Instrumentation(who).install()


def _require(sdk: Sdk, module: ModuleType) -> type:
    owner: type | None = getattr(module, "BaseClient", None)
    missing = [name for name in _NEEDED if not hasattr(owner, name)]
    if owner is None or missing:
        raise _no_place(sdk, f"{module.__name__}.BaseClient" + (f".{missing[0]}" if owner else ""))
    return owner


def _no_place(sdk: Sdk, name: str) -> InstrumentationError:
    from importlib.metadata import version

    return InstrumentationError(
        f"{sdk.name} {version(sdk.name)} has no {name!r}, which tags requests with their rollout and agent. "
        f"Install {sdk.name}{sdk.versions}, or build each agent's client with the path form of the gateway's "
        f"address as base_url: {{gateway}}/rollouts/{{rollout_id}}/agents/{{agent}}{sdk.base_path}"
    )


def _build_request(sdk: Sdk, original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    blocking: list[str] = []

    def build_request(client: Any, options: Any, **kwargs: Any) -> Any:
        scope = current_scope()
        if users and scope is not None and not blocking and _blocks_a_loop(client):
            blocking.append(unseen.app_line() or "a library")
            log.warning(
                "%s calls a model with a blocking client in an async function, so rollouts run one after "
                "another; await an async client there, or make the function that runs the app a plain `def`",
                blocking[0],
            )
        served = sdk.served.fullmatch(_path(options.url)) if users and scope is not None else None
        if served is not None and scope is not None and scope.prompts:
            options = _with_prompt(options, scope, name_caller(users), served[1])
        request = original(client, options, **kwargs)
        if served is not None and scope is not None:
            if _in_path_form(request, scope):
                return request
            agent = name_caller(users)
            if scope.trains(agent) or sdk.names_no_endpoint(client.base_url.host, request.headers):
                route(sdk, request, scope, agent, _call_id(sdk, options), served[1])
                observed.keep_token(request)
            elif (
                request.method == "POST"
                and (dialect := find_dialect(served[1]))
                and not at_gateway(request.url.netloc.decode("ascii"), scope)
            ):
                observed.watch(request, scope, agent, _call_id(sdk, options), dialect)
        return request

    return build_request


def _blocks_a_loop(client: Any) -> bool:
    """Whether a client without `await` is called where an event loop runs, which waits meanwhile."""
    return asyncio._get_running_loop() is not None and not inspect.iscoroutinefunction(client.request)


def _with_prompt(options: Any, scope: Scope, agent: str, path: str) -> Any:
    """The call with the prompt that the rollout is pinned to. Each try of the SDK comes from its own options,
    so these are copied. Raises ConfigError for a call of the agent that has another prompt."""
    pinned, dialect = scope.prompts.get(agent), find_dialect(path)
    if pinned is None or dialect is None or not isinstance(options.json_data, dict):
        return options
    return options.model_copy(update={"json_data": put_in(agent, pinned, dialect, options.json_data)})


def _path(url: str) -> str:
    """The path of an absolute or relative address, without its query."""
    if "://" in url:
        url = url.partition("://")[2].partition("/")[2]
    return "/" + url.partition("?")[0].lstrip("/")


def _in_path_form(request: Any, scope: Scope) -> bool:
    """Whether the app itself names, in the address, the gateway, this rollout and the agent."""
    if not at_gateway(request.url.netloc.decode("ascii"), scope):
        return False
    base = scope.gateway_url.partition("://")[2].partition("/")[2].rstrip("/")
    own = f"{base}/rollouts/{headers.encode_name(scope.rollout_id)}/agents/".lstrip("/")
    address: str = request.url.raw_path.decode("ascii")
    return address.lstrip("/").startswith(own)


def _call_id(sdk: Sdk, options: Any) -> str:
    key = options.idempotency_key
    if key is not None:
        return quote(str(key).removeprefix(_KEY_PREFIX), safe="-")
    if options.method.lower() == "get":  # reads nothing that is recorded; the SDK gives it no key
        return uuid4().hex
    raise _no_place(sdk, "FinalRequestOptions.idempotency_key")
