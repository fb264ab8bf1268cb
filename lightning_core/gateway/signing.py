"""Claims that bear a signature: who shares the secret can check them without asking anybody.

The signature covers the prefix too, so that what was signed for one purpose opens nothing of another,
though both may be signed with the secret of one run.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any

import orjson

from lightning_core.errors import AccessError, ConfigError

_SHORTEST_SECRET = 16


class Seal:
    """Signs claims with one secret for one purpose, which the prefix names."""

    def __init__(self, secret: bytes, prefix: str) -> None:
        if len(secret) < _SHORTEST_SECRET:
            raise ConfigError(
                f"the secret that signs tokens has {len(secret)} bytes; give at least {_SHORTEST_SECRET}, "
                "for example secrets.token_bytes(32)"
            )
        self._secret = secret
        self._prefix = prefix

    def close(self, claims: Any) -> str:
        """The claims as one word that may stand in a header or an environment variable."""
        payload = urlsafe_b64encode(orjson.dumps(claims)).decode()
        return f"{self._prefix}{payload}.{self._signature(payload)}"

    def open(self, sealed: str) -> Any | None:
        """The claims; None if they were not sealed with this secret under this prefix."""
        payload, _, signature = sealed.removeprefix(self._prefix).partition(".")
        if not sealed.startswith(self._prefix) or not hmac.compare_digest(
            signature.encode(), self._signature(payload).encode()
        ):
            return None
        return read_claims(payload)

    def _signature(self, payload: str) -> str:
        return urlsafe_b64encode(
            hmac.digest(self._secret, (self._prefix + payload).encode(), sha256)
        ).decode()


def claims_in(sealed: str, prefix: str) -> Any:
    """What a sealed word says of itself, unchecked: only to find the secret that it is to be opened with.

    Raises AccessError if it says nothing.
    """
    return read_claims(sealed.removeprefix(prefix).partition(".")[0])


def read_claims(payload: str) -> Any:
    """Raises AccessError for what is no payload."""
    try:
        return orjson.loads(urlsafe_b64decode(payload))
    except (binascii.Error, ValueError) as error:
        raise AccessError("the token comes from another version of this package; issue it again") from error
