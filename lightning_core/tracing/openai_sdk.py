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

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType, TracebackType
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from lightning_core.dialects import DIALECTS, find_dialect
from lightning_core.errors import InstrumentationError
from lightning_core.tracing import headers, observed, spans, threads
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import Scope, current_agent, current_scope
from lightning_core.types import UNNAMED, Who

Puller = Callable[[], Who | None]
"""Answers "who is calling right now?"; see `Plugins.who`."""

API_KEY = "x-api-key"
AUTHORIZATION = "authorization"
_NEEDED = ("_build_request", "_idempotency_key")
_KEY_PREFIX = "stainless-python-retry-"
_TAKEN_OUT = frozenset(
    name.encode()
    for name in (
        *("host", "authorization", "api-key", "x-api-key", "cookie"),
        *("openai-organization", "openai-project"),
    )
)
"""The headers of a routed request that are replaced or dropped: its address and its credentials."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """One SDK."""

    name: str
    versions: str
    """Those whose requests are known to be built in `BaseClient._build_request`."""
    served: re.Pattern[str]
    """The paths that the gateway can serve; the group is what follows `/v1`. The rest (embeddings, files,
    audio) is not the policy's to answer: it goes where the app sends it."""
    names_no_endpoint: Callable[[Any, Any], bool]
    """Whether a call (client, request) could never succeed where it points: at the SDK's default address,
    without a key that opens it."""
    key_header: str
    key_prefix: str
    """How a request bears the rollout's token."""
    base_path: str
    """How its base URLs end."""

    @property
    def module(self) -> str:
        """The module of its clients' base class."""
        return f"{self.name}._base_client"


def _no_openai_key(client: Any, request: Any) -> bool:
    if client.base_url.host != "api.openai.com":
        return False
    return not request.headers.get(AUTHORIZATION, "").startswith(_OPENAI_KEYS)


def _no_anthropic_key(client: Any, request: Any) -> bool:
    """A request that bears no key at all gets one when it is sent, from the app's credentials."""
    if client.base_url.host != "api.anthropic.com":
        return False
    given = request.headers.get(API_KEY), request.headers.get(AUTHORIZATION)
    keys = [key.removeprefix("Bearer ") for key in given if key]
    return bool(keys) and not any(key.startswith("sk-ant-") for key in keys)


def _paths(sdk: str) -> str:
    """A pattern of the addresses of the APIs that an SDK speaks."""
    return "|".join(re.escape(dialect.path) for dialect in DIALECTS if dialect.sdk == sdk)


_OPENAI_KEYS: Final = ("Bearer sk-", "Bearer eyJ", "Bearer workload-identity-auth")
"""An API key, an OAuth token, the placeholder of a workload identity."""

OPENAI: Final = Sdk(
    name="openai",
    versions=">=2.30,<4",
    # Behind an absolute or an Azure prefix.
    served=re.compile(
        rf"(?:.*/(?:v\d+|openai))?(?:/deployments/[^/]+)?((?:{_paths('openai')}|/models)(?:/.*)?)"
    ),
    names_no_endpoint=_no_openai_key,
    key_header=AUTHORIZATION,
    key_prefix="Bearer ",
    base_path="/v1",
)
ANTHROPIC: Final = Sdk(
    name="anthropic",
    versions=">=2.11,<3",
    served=re.compile(rf"(?:.*/v\d+)?({_paths('anthropic')})"),
    names_no_endpoint=_no_anthropic_key,
    key_header=API_KEY,
    key_prefix="",
    base_path="",
)
SDKS: Final = (OPENAI, ANTHROPIC)


class Instrumentation:
    """The tagging of one process, until `uninstall()`. Any number may be open at once."""

    def __init__(self, who: Puller) -> None:
        self._who = who
        self._undo: list[Callable[[], None]] = []

    def install(self) -> Instrumentation:
        """Tag from now on; an SDK that the app has not imported yet, from its import on."""
        if self._undo:
            return self
        self._undo += [threads.install(), spans.install(_span_processor)]
        hooks = [WhenImported(name, self._listen) for name in observed.CLIENTS]
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
        self._undo += observed.install(module, self._who)

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


def innermost(answers: Sequence[Who | None]) -> Who | None:
    """Of several callers the one whose scope was entered last."""
    return max((who for who in answers if who is not None), key=lambda who: who.entered, default=None)


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
    parse = lru_cache(maxsize=64)(lambda url_type, address: url_type(address))

    def build_request(client: Any, options: Any, **kwargs: Any) -> Any:
        request = original(client, options, **kwargs)
        scope = current_scope()
        if users and scope is not None and (served := sdk.served.fullmatch(_path(options.url))):
            if _in_path_form(request, scope):
                return request
            who = innermost([current_agent(), spans.current_span_agent(), *(user() for user in users)])
            agent = who.agent if who is not None else UNNAMED
            if scope.trains(agent) or sdk.names_no_endpoint(client, request):
                url_type: Any = type(request.url)  # httpx's or httpx2's
                request.url = parse(url_type, _address(request, scope, served[1]))
                request.extensions.pop("sni_hostname", None)
                _tag(sdk, request, scope, agent, _call_id(sdk, options))
                observed.keep_token(request)
            elif (
                request.method == "POST"
                and (dialect := find_dialect(served[1]))
                and not _at_gateway(request, scope)
            ):
                observed.watch(request, scope, agent, _call_id(sdk, options), dialect)
        return request

    return build_request


def _path(url: str) -> str:
    """The path of an absolute or relative address, without its query."""
    if "://" in url:
        url = url.partition("://")[2].partition("/")[2]
    return "/" + url.partition("?")[0].lstrip("/")


def _at_gateway(request: Any, scope: Scope) -> bool:
    """Whether the app itself names the gateway, which records the call."""
    address: str = request.url.netloc.decode("ascii")
    return scope.gateway_url.partition("://")[2].partition("/")[0] == address


def _in_path_form(request: Any, scope: Scope) -> bool:
    """Whether the app itself names, in the address, the gateway, this rollout and the agent."""
    if not _at_gateway(request, scope):
        return False
    base = scope.gateway_url.partition("://")[2].partition("/")[2].rstrip("/")
    own = f"{base}/rollouts/{headers.encode_name(scope.rollout_id)}/agents/".lstrip("/")
    address: str = request.url.raw_path.decode("ascii")
    return address.lstrip("/").startswith(own)


def _address(request: Any, scope: Scope, path: str) -> str:
    address = f"{scope.gateway_url.rstrip('/')}/v1{path}"
    if request.url.query:
        query = request.url.params.remove("api-version")  # Azure's
        address += f"?{query}" if query else ""
    return address


def _tag(sdk: Sdk, request: Any, scope: Scope, agent: str, call: str) -> None:
    kept = [item for item in request.headers.raw if item[0].lower() not in _TAKEN_OUT]
    ours = {
        sdk.key_header: sdk.key_prefix + scope.token,
        headers.ROLLOUT: scope.rollout_id,
        headers.AGENT: headers.encode_name(agent),
        headers.CALL: call,
    }
    encoded = [(name.encode(), value.encode()) for name, value in ours.items()]
    # Built once: setting a header searches through all of them, and that took most of the time here.
    request.headers = type(request.headers)([(b"Host", request.url.netloc), *kept, *encoded])


def _call_id(sdk: Sdk, options: Any) -> str:
    key = options.idempotency_key
    if key is not None:
        return quote(str(key).removeprefix(_KEY_PREFIX), safe="-")
    if options.method.lower() == "get":  # reads nothing that is recorded; the SDK gives it no key
        return uuid4().hex
    raise _no_place(sdk, "FinalRequestOptions.idempotency_key")
