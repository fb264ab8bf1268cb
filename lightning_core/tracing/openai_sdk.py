"""The choke point: every request that the OpenAI SDK builds passes here, in the caller's own context.

`BaseClient._build_request` makes the HTTP request of each attempt, sync and async, for every kind of
call, under the same name in openai 2.x (on httpx) and 3.x (on httpx2). Inside a rollout a request is
either *routed*, sent to the gateway with the rollout's token and three headers that say whose it is,
or left exactly as the app made it: a hosted endpoint sees nothing of ours.

The call id is the idempotency key that `request()` mints for each call and repeats on its retries.
An app that sets that key itself says with it which requests are one call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType, TracebackType
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from lightning_core.errors import InstrumentationError
from lightning_core.tracing import headers, threads
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import Scope, current_agent, current_scope
from lightning_core.types import UNNAMED, Who

Puller = Callable[[], Who | None]
"""Answers "who is calling right now?"; see `Plugins.who`."""

_MODULE = "openai._base_client"
_NEEDED = ("_build_request", "_idempotency_key")
_DEFAULT_HOST = "api.openai.com"
_OPENAI_KEYS = ("Bearer sk-", "Bearer eyJ", "Bearer workload-identity-auth")
"""An API key, an OAuth token, the placeholder of a workload identity."""
_KEY_PREFIX = "stainless-python-retry-"
_TAKEN_OUT = frozenset(
    name.encode()
    for name in ("host", "authorization", "api-key", "openai-organization", "openai-project", "cookie")
)
"""The headers of a routed request that are replaced or dropped: its address and its credentials."""
_SERVED = re.compile(
    r"(?:.*/(?:v\d+|openai))?(?:/deployments/[^/]+)?(/(?:chat/completions|completions|responses|models)(?:/.*)?)"
)
"""What the gateway can serve, behind an absolute or an Azure prefix. Embeddings, files and audio are
not the policy's to answer: they go where the app sends them."""


class Instrumentation:
    """The tagging of one process, until `uninstall()`. Any number may be open at once."""

    def __init__(self, who: Puller) -> None:
        self._who = who
        self._undo: list[Callable[[], None]] = []

    def install(self) -> Instrumentation:
        """Tag from now on; if the app has not imported openai yet, from its import on."""
        if self._undo:
            return self
        self._undo.append(threads.install())
        import_hook = WhenImported(_MODULE, self._patch)
        self._undo.append(import_hook.stop)
        try:
            import_hook.start()
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

    def _patch(self, module: ModuleType) -> None:
        owner = _require(module)
        self._undo.append(patch(owner, "_build_request", self._who, _build_request))


def instrument(who: Puller) -> Instrumentation:
    """Tag and route the requests of every OpenAI client in this process, old and new.

    `who` names the caller of frameworks; `agent(...)` blocks are known without it. Raises
    InstrumentationError if the installed SDK offers no place for it.
    """
    return Instrumentation(who).install()


def innermost(answers: Sequence[Who | None]) -> Who | None:
    """Of several callers the one whose scope was entered last."""
    return max((who for who in answers if who is not None), key=lambda who: who.entered, default=None)


def _require(module: ModuleType) -> type:
    owner: type | None = getattr(module, "BaseClient", None)
    missing = [name for name in _NEEDED if not hasattr(owner, name)]
    if owner is None or missing:
        raise _no_place(f"{module.__name__}.BaseClient" + (f".{missing[0]}" if owner else ""))
    return owner


def _no_place(name: str) -> InstrumentationError:
    from importlib.metadata import version

    return InstrumentationError(
        f"openai {version('openai')} has no {name!r}, which tags requests with their rollout and agent. "
        "Install openai>=2.30,<4, or build each agent's client with the path form of the gateway's "
        "address as base_url: {gateway}/rollouts/{rollout_id}/agents/{agent}/v1"
    )


def _build_request(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    parse = lru_cache(maxsize=64)(lambda url_type, address: url_type(address))

    def build_request(client: Any, options: Any, **kwargs: Any) -> Any:
        request = original(client, options, **kwargs)
        scope = current_scope()
        if users and scope is not None and (served := _SERVED.fullmatch(_path(options.url))):
            who = innermost([current_agent(), *(user() for user in users)])
            agent = who.agent if who is not None else UNNAMED
            if scope.trains(agent) or _names_no_endpoint(client, request):
                url_type: Any = type(request.url)  # httpx's or httpx2's
                request.url = parse(url_type, _address(request, scope, served[1]))
                request.extensions.pop("sni_hostname", None)
                _tag(request, scope, agent, _call_id(options))
        return request

    return build_request


def _path(url: str) -> str:
    """The path of an absolute or relative address, without its query."""
    if "://" in url:
        url = url.partition("://")[2].partition("/")[2]
    return "/" + url.partition("?")[0].lstrip("/")


def _names_no_endpoint(client: Any, request: Any) -> bool:
    """Whether a call could never succeed where it points: OpenAI's own address without OpenAI's key."""
    if client.base_url.host != _DEFAULT_HOST:
        return False
    return not request.headers.get("authorization", "").startswith(_OPENAI_KEYS)


def _address(request: Any, scope: Scope, path: str) -> str:
    address = f"{scope.gateway_url.rstrip('/')}/v1{path}"
    if request.url.query:
        query = request.url.params.remove("api-version")  # Azure's
        address += f"?{query}" if query else ""
    return address


def _tag(request: Any, scope: Scope, agent: str, call: str) -> None:
    kept = [item for item in request.headers.raw if item[0].lower() not in _TAKEN_OUT]
    ours = {
        "authorization": f"Bearer {scope.token}",
        headers.ROLLOUT: scope.rollout_id,
        headers.AGENT: headers.encode_agent(agent),
        headers.CALL: call,
    }
    encoded = [(name.encode(), value.encode()) for name, value in ours.items()]
    # Built once: setting a header searches through all of them, and that took most of the time here.
    request.headers = type(request.headers)([(b"Host", request.url.netloc), *kept, *encoded])


def _call_id(options: Any) -> str:
    key = options.idempotency_key
    if key is not None:
        return quote(str(key).removeprefix(_KEY_PREFIX), safe="-")
    if options.method.lower() == "get":  # reads nothing that is recorded; the SDK gives it no key
        return uuid4().hex
    raise _no_place("FinalRequestOptions.idempotency_key")
