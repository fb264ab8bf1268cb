"""The SDKs whose requests are tagged, and what differs between them.

OpenAI's and Anthropic's are made by the same generator: one choke point under one name serves both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

API_KEY = "x-api-key"
AUTHORIZATION = "authorization"


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


_OPENAI_KEYS: Final = ("Bearer sk-", "Bearer eyJ", "Bearer workload-identity-auth")
"""An API key, an OAuth token, the placeholder of a workload identity."""

OPENAI: Final = Sdk(
    name="openai",
    versions=">=2.30,<4",
    # Behind an absolute or an Azure prefix.
    served=re.compile(
        r"(?:.*/(?:v\d+|openai))?(?:/deployments/[^/]+)?"
        r"(/(?:chat/completions|completions|responses|models)(?:/.*)?)"
    ),
    names_no_endpoint=_no_openai_key,
    key_header=AUTHORIZATION,
    key_prefix="Bearer ",
    base_path="/v1",
)
ANTHROPIC: Final = Sdk(
    name="anthropic",
    versions=">=2.11,<3",
    served=re.compile(r"(?:.*/v\d+)?(/messages)"),
    names_no_endpoint=_no_anthropic_key,
    key_header=API_KEY,
    key_prefix="",
    base_path="",
)
SDKS: Final = (OPENAI, ANTHROPIC)

DIALECTS: Final = MappingProxyType(
    {
        "/chat/completions": "chat",
        "/completions": "completions",
        "/responses": "responses",
        "/messages": "anthropic",
    }
)
"""The dialect of a call, by the end of its path. What is posted elsewhere is no call of a model."""
