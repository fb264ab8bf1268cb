"""The request headers that say whose call it is, and how an agent's name travels in one.

The gateway reads what the choke point in the SDK writes; both take the names from here.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

AUTHORIZATION = "authorization"
API_KEY = "x-api-key"
"""Where Anthropic's SDK puts the key."""
AZURE_KEY = "api-key"
"""Where Azure's clients put it."""
ROLLOUT = "x-lightning-rollout"
AGENT = "x-lightning-agent"
"""Percent-encoded UTF-8: a header carries neither spaces at its ends nor letters beyond Latin-1."""
CALL = "x-lightning-call"
"""The same for every attempt that the SDK makes at one call."""


def encode_name(name: str) -> str:
    """The name of an agent or a rollout as a header value or as one segment of a URL path."""
    return quote(name, safe="")


def decode_name(value: str) -> str:
    """The name behind `encode_name`'s value."""
    return unquote(value)
