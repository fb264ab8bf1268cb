"""Passwords and tokens of the environment: which stores may get them.

A run's folder names the store of its records, and the folder may be a stranger's. So a store that only a
folder names gets no PGPASSWORD, REDISCLI_AUTH or LIGHTNING_API_TOKEN. Its URL says so by an empty password,
which each store honours, also in a process that the URL is handed to.
"""

from __future__ import annotations

import os
import re
from typing import Final

from lightning_core.errors import ConfigError
from lightning_core.texts.masking import without_password

NAMED: Final = "LIGHTNING_STORE"
"""The environment variable with URLs of stores, separated by spaces, that may get the others' passwords."""
_SERVERS: Final = ("postgresql", "postgres", "redis", "rediss", "http", "https")
_URL: Final = re.compile(r"(?:([^\s/?#@:]*)(?::([^\s/?#@]*))?@)?([^\s/?#@]*)([/?#][^\s@]*)?")
"""After "://": user, password, host and port, the rest."""


def from_folder(url: str) -> str:
    """The URL of a store as a folder names it: without a password of the environment, unless `NAMED` has it.

    Raises ConfigError for a URL that programs might read in different ways.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SERVERS:
        return url
    found = _URL.fullmatch(rest)
    if found is None:
        raise ConfigError(f"run.json names a store that can't be read: {without_password(url)!r}")
    user, password, place, options = (part or "" for part in found.groups())
    named = (without_password(each) for each in os.environ.get(NAMED, "").split())
    if password or without_password(url) in named:
        return url
    return f"{scheme}://{user}:@{place}{options}"


def takes_none(url: str) -> bool:
    """Whether the URL says that no password of the environment is for this store."""
    login, mark, _ = url.partition("://")[2].partition("@")
    return bool(mark) and login.endswith(":") and "/" not in login


def advice(variable: str, url: str) -> str:
    """Returns the advice where `variable` was not sent to a store, or "" where the URL does not forbid it."""
    if not takes_none(url) or variable not in os.environ:
        return ""
    return (
        f"{variable} was not sent, because only the run's folder names this store. If you trust it, set "
        f"{NAMED}={without_password(url)}"
    )
