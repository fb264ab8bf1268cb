"""Where a request goes: to the gateway, as whose, and which requests the gateway can answer.

Shared by the SDKs' choke point (`openai_sdk`) and by the HTTP libraries' (`unseen`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from lightning_core.dialects import DIALECTS
from lightning_core.records.types import Who
from lightning_core.tracing import headers
from lightning_core.tracing.scope import Scope

Puller = Callable[[], Who | None]
"""Answers "who is calling right now?"; see `Plugins.who`."""

TAKEN_OUT = frozenset(
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
    """Versions whose requests are known to be built in `BaseClient._build_request`."""
    served: re.Pattern[str]
    """The paths that the gateway can serve; the group is what follows `/v1`. The rest (embeddings, files,
    audio) is not the policy's to answer: it goes where the app sends it."""
    names_no_endpoint: Callable[[str, Mapping[str, str]], bool]
    """Whether a call (host, headers) could never succeed where it points: at the SDK's default address,
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


def _no_openai_key(host: str, given: Mapping[str, str]) -> bool:
    return host == "api.openai.com" and not given.get(headers.AUTHORIZATION, "").startswith(_OPENAI_KEYS)


def _no_anthropic_key(host: str, given: Mapping[str, str]) -> bool:
    """A request that bears no key at all gets one when it is sent, from the app's credentials."""
    if host != "api.anthropic.com":
        return False
    keys = [
        key.removeprefix("Bearer ")
        for name in (headers.API_KEY, headers.AUTHORIZATION)
        if (key := given.get(name))
    ]
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
    key_header=headers.AUTHORIZATION,
    key_prefix="Bearer ",
    base_path="/v1",
)
ANTHROPIC: Final = Sdk(
    name="anthropic",
    versions=">=2.11,<3",
    served=re.compile(rf"(?:.*/v\d+)?({_paths('anthropic')})"),
    names_no_endpoint=_no_anthropic_key,
    key_header=headers.API_KEY,
    key_prefix="",
    base_path="",
)
SDKS: Final = (OPENAI, ANTHROPIC)


def innermost(answers: Sequence[Who | None]) -> Who | None:
    """Returns the caller whose scope was entered last."""
    return max((who for who in answers if who is not None), key=lambda who: who.entered, default=None)


def at_gateway(netloc: str, scope: Scope) -> bool:
    """Whether the app itself names the gateway, which records the call."""
    return scope.gateway_url.partition("://")[2].partition("/")[0] == netloc


def address(scope: Scope, path: str, query: str) -> str:
    """Where a call goes that is routed; `path` is what follows `/v1`."""
    return f"{scope.gateway_url.rstrip('/')}/v1{path}" + (f"?{query}" if query else "")


def marks(sdk: Sdk, scope: Scope, agent: str, call: str) -> dict[str, str]:
    """The headers that say whose a routed call is, its token among them."""
    return {
        sdk.key_header: sdk.key_prefix + scope.token,
        headers.ROLLOUT: scope.rollout_id,
        headers.AGENT: headers.encode_name(agent),
        headers.CALL: call,
    }


def route(sdk: Sdk, request: Any, scope: Scope, agent: str, call: str, path: str) -> None:
    """Send a request of httpx or httpx2 to the gateway."""
    query = request.url.params.remove("api-version") if request.url.query else ""  # Azure's
    url_type: Any = type(request.url)  # httpx's or httpx2's
    request.url = _parse(url_type, address(scope, path, str(query)))
    request.extensions.pop("sni_hostname", None)
    kept = [item for item in request.headers.raw if item[0].lower() not in TAKEN_OUT]
    encoded = [(name.encode(), value.encode()) for name, value in marks(sdk, scope, agent, call).items()]
    # Built once: setting a header searches through all of them, and that took most of the time here.
    request.headers = type(request.headers)([(b"Host", request.url.netloc), *kept, *encoded])


@lru_cache(maxsize=64)
def _parse(url_type: Any, url: str) -> Any:
    return url_type(url)
