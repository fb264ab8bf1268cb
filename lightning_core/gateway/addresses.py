"""Addresses as clients of other servers write them: with a slash at the end, Azure's, and OPTIONS.

Azure's clients take the gateway's address as their endpoint and ask `/openai/v1/chat/completions`, or
`/openai/deployments/NAME/chat/completions`; which deployment does not matter, as the model's name does not.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

_AZURE: Final = re.compile(
    r"(?P<base>.*)/openai(?:/v1|/deployments/[^/]+)?"
    r"/(?P<asked>chat/completions|completions|embeddings|(?:responses|models)(?:/.+)?|(?:audio|images)/.+)",
    re.DOTALL,
)


class Addresses:
    """An ASGI app whose requests may have such addresses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            allowed = [(b"allow", b"GET, POST, OPTIONS"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app({**scope, "path": own_path(scope["path"])}, receive, send)


def own_path(path: str) -> str:
    """The gateway's own path for one of a client."""
    path = path.rstrip("/") or "/"
    azure = _AZURE.fullmatch(path)
    return path if azure is None else f"{azure['base']}/v1/{azure['asked']}"
