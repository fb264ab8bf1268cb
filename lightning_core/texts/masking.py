"""Masking in texts that are shown, logged or written to disk: of passwords and keys, and of what varies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_MASK = "***"
_RUN = re.compile(r"[^\s'\"]+")
_SECRET = r"[\w-]*?(?:(?:api|access)[_-]?key|[_-]key|secret|passw(?:or)?d|credential|(?<![a-z])token)"
_GIVEN = re.compile(
    rf"(?i)((?<![\w-]){_SECRET}['\"]?\s*[=:]\s*)(?!None\b)('[^']*'|\"[^\"]*\"|[^\s,&)}}\]]+)|(\bbearer\s+)\S+"
)
_FLAG = re.compile(rf"(?i)--?{_SECRET}$")
_OPTION = re.compile(r"(?i)[^=]*passw(?:or)?d=")
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+(\.\d+)?")


def without_password(url: str) -> str:
    """The URL of a store without its password: it still says where the store is, and who asks it.

    PGPASSWORD, PGPASSFILE, REDISCLI_AUTH or LIGHTNING_API_TOKEN say the password to whoever opens it.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    before, _, query = rest.partition("?")
    # a '?' that should have been written %3F, as '/' and '@', is taken for a part of the password
    login = not rest.startswith("/") and ("@" in before or "@" in query.partition("=")[0])
    end = rest.rfind("@") + 1 if login else 0
    user = rest[: max(end - 1, 0)].partition(":")[0]
    if scheme in ("http", "https"):  # its login is a token, wherever that stands
        user = ""
    place, _, query = rest[end:].partition("?")
    options = "&".join(option for option in query.split("&") if not _OPTION.match(option))
    return f"{scheme}://{user}{'@' if user else ''}{place}{'?' if options else ''}{options}"


def mask(text: str) -> str:
    """The text with *** for passwords: those of URLs, and what is given to a name such as api_key."""
    text = _RUN.sub(_without_login, text)
    return _GIVEN.sub(lambda found: f"{found[1] or found[3]}{_MASK}", text)


def _without_login(run: re.Match[str]) -> str:
    """Characters without a space, less what stands between :// and the last @."""
    before, mark, rest = run[0].partition("://")
    _, at, place = rest.rpartition("@")
    return f"{before}{mark}{_MASK}{at}{place}" if at else run[0]


def masked(arguments: Sequence[str]) -> Iterator[str]:
    """A command line without secrets: neither in an argument, nor after a flag that asks for one."""
    secret = False
    for argument in arguments:
        yield _MASK if secret else mask(argument)
        secret = _FLAG.fullmatch(argument) is not None


def is_secret(name: str) -> bool:
    """Whether a variable or an option of that name holds a password or a key."""
    return re.fullmatch(rf"(?i){_SECRET}", name) is not None


def without_details(message: str) -> str:
    """The message with … for quoted names, addresses in memory and numbers, equal for messages of a kind."""
    return _VARIES.sub("…", message)
