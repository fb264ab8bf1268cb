"""Names for the calls of programs that name no agent: `Trainer(names=...)`.

A coding harness sends every call to one base URL, its sub-agents' and its summaries' too. What tells them
apart is the system prompt. A rule is a name and a regular expression that is searched for in it. A header
names an agent more exactly than a rule, and a rule more exactly than an address. Without a rule nothing is
guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lightning_core.dialects.base import Dialect
from lightning_core.dialects.lenient import Json
from lightning_core.errors import ApiError, ConfigError

CONFIG = "names"
"""Where in a run's configuration the rules are written."""


class Naming:
    """The rules of one run."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        """Raises ConfigError, by name, for what is no rule, and for two names with one pattern."""
        self._patterns = {name: _pattern(name, given) for name, given in rules.items()}
        by_pattern: dict[str, str] = {}
        for name, given in rules.items():
            if (other := by_pattern.setdefault(given, name)) != name:
                raise ConfigError(
                    f"names: {other!r} and {name!r} have the same pattern, {given!r}; give each its own"
                )

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def find(self, dialect: type[Dialect], body: Json) -> str | None:
        """The name of the agent that made a request; None if no rule says. Raises ApiError if several do."""
        prompt = _system(dialect, body)
        found = [name for name, pattern in self._patterns.items() if pattern.search(prompt)]
        if len(found) > 1:
            raise ApiError(
                f"Trainer(names=...) gives this request several names, {', '.join(map(repr, found))}: the "
                "system prompt matches the pattern of each; make the patterns more exact",
                code="ambiguous_agent",
                param=dialect.instructions or dialect.prompt,
            )
        return found[0] if found else None


def _pattern(name: Any, given: Any) -> re.Pattern[str]:
    if not isinstance(name, str) or not name or not isinstance(given, str) or not given:
        raise ConfigError(
            f'names={{{name!r}: {given!r}}}: give {{"AGENT": "a regular expression in its system prompt"}}'
        )
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigError(f"names[{name!r}] = {given!r} is not a regular expression: {error}") from error


def _system(dialect: type[Dialect], body: Json) -> str:
    """All texts that a request gives as system prompt; none of a request that can't be read."""
    try:
        messages = dialect.messages(body)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""  # it is refused with its reason when it is read
    return "\n".join(
        part["content"]
        for message in messages
        if message["role"] in ("system", "developer")
        for part in message["parts"]
        if part["type"] == "text" and isinstance(part.get("content"), str)
    )
