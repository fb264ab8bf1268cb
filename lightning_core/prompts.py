"""Prompts under optimisation: what an app declares, and the version that a rollout's agent is told instead.

A declared prompt is the text that the app itself sends: its seed. A rollout is pinned to a version of each,
as it is to weights. Whoever passes an agent's request on (the SDK's choke point, and the gateway for programs
in any language) puts that version in place of the seed. A request that holds neither is refused: its rollout
would be judged under a prompt that it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from lightning_core.dialects.base import Dialect
from lightning_core.dialects.lenient import Message
from lightning_core.errors import ConfigError
from lightning_core.records.types import Run
from lightning_core.stores.base import Store
from lightning_core.stores.versions import get_version

ALL = "all"
"""In the place of declared prompts: those of all agents, found in their calls."""
DECLARED = "prompts"
"""Where in a run's configuration the declared prompts are written."""
FOUND = "prompts found"
"""Where in it those are written that were found; before that it is missing."""
LEFT_OUT = "prompts left out"
"""Where in it the agents are named whose prompt was not found, each with the reason."""
_TRIES, _TRIED_CHARACTERS = 16, 1 << 24
"""Values that are tried where a placeholder comes twice: so many, or so many as read these characters."""
_SHOWN = 80
"""Characters of a prompt in a message."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the app sends it."""

    text: str
    placeholders: tuple[str, ...] = ()
    """Parts of the text, such as "{schema}", in whose place the app puts values. Every other version has them
    too."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an empty text, and for a placeholder that is not in it."""
        if not self.text:
            raise ConfigError("a prompt needs a text: give the one that the app sends")
        if missing := self.lost(self.text):
            raise ConfigError(f"placeholders {missing!r} are not in the prompt {_short(self.text)}")

    def lost(self, text: str) -> list[str]:
        """The placeholders that a text does not have."""
        return [each for each in self.placeholders if not each or each not in text]

    def read(self, said: str) -> dict[str, str] | None:
        """The values in place of the placeholders; None if the text differs from the prompt elsewhere."""
        if not self.placeholders:
            return {} if said == self.text else None
        parts = self.split(self.text)
        twice = {each for each in self.placeholders if parts.count(each) > 1}
        return _Reading(parts, frozenset(self.placeholders), twice, said).values(0, 0, {})

    def fill(self, text: str, values: Mapping[str, str]) -> str:
        """Another version's text with these values; what a value holds is left as it is."""
        return "".join(values.get(part, part) for part in self.split(text))

    def split(self, text: str) -> list[str]:
        """A text in parts: its placeholders, and what lies between them."""
        if not self.placeholders:
            return [text]
        longest_first = sorted(self.placeholders, key=len, reverse=True)
        return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)


class _Reading:
    """Finds what a text has in place of placeholders, each value as short as possible, the first ones first.

    The text after a placeholder is looked for once: where it comes first, the most is left for the rest. Only
    before a placeholder that comes twice other values may have to be tried, and their number is bounded.
    """

    def __init__(self, parts: list[str], placeholders: frozenset[str], twice: set[str], said: str) -> None:
        self._parts, self._placeholders, self._twice, self._said = parts, placeholders, twice, said
        self._left = max(_TRIES, _TRIED_CHARACTERS // (len(said) + 1))
        """Values that may still be tried for placeholders that come twice."""

    def values(self, part: int, at: int, found: dict[str, str]) -> dict[str, str] | None:
        """The values from here on, with those found before; None if the text can't go on so."""
        while part < len(self._parts):
            piece = self._parts[part]
            if piece in self._placeholders and piece not in found:
                return self._try(piece, part + 1, at, found)
            expected = found.get(piece, piece)
            if not self._said.startswith(expected, at):
                return None
            part, at = part + 1, at + len(expected)
        return found if at == len(self._said) else None

    def _try(self, name: str, part: int, at: int, found: dict[str, str]) -> dict[str, str] | None:
        known, last = self._fixed(part, found)
        if not self._twice - found.keys():
            end = len(self._said) - len(known) if last else self._said.find(known, at)
            return self.values(part, end, {**found, name: self._said[at:end]}) if end >= at else None
        end = self._said.find(known, at)  # where it is the last, ends that leave something over fail at once
        while end >= 0 and self._left > 0:
            self._left -= 1
            values = self.values(part, end, {**found, name: self._said[at:end]})
            if values is not None:
                return values
            end = self._said.find(known, end + 1)
        return None

    def _fixed(self, part: int, found: dict[str, str]) -> tuple[str, bool]:
        """The text that must follow up to the next value that is unknown, and whether it is the last."""
        known: list[str] = []
        for piece in self._parts[part:]:
            if piece in self._placeholders and piece not in found:
                return "".join(known), False
            known.append(found.get(piece, piece))
        return "".join(known), True


@dataclass(frozen=True, slots=True)
class Pinned:
    """The version of a prompt that a rollout is pinned to."""

    seed: Prompt
    text: str

    def put(self, said: str) -> str | None:
        """Returns the text for the model in place of the app's; None if that is neither the seed nor this
        version."""
        if (values := self.seed.read(said)) is not None:
            return self.seed.fill(self.text, values)
        return said if self.is_in(said) else None

    def is_in(self, said: str) -> bool:
        """Whether the app says this version already."""
        return Prompt(self.text, self.seed.placeholders).read(said) is not None


def put_in(agent: str, pinned: Pinned, dialect: type[Dialect], request: dict[str, Any]) -> dict[str, Any]:
    """The agent's request with the version in the seed's place. Raises ConfigError if it has neither."""
    changed = dialect.with_system(request, pinned.put)
    if changed is not None:
        return changed
    seed = pinned.seed.text
    said = system_texts(dialect.messages(request))
    sent = "no system message" if not said else f"the system message {_short(said[0])}"
    raise ConfigError(
        f"agent {agent!r} has the prompt {_short(seed)}, and its call has {sent}"
        + (f", which differs from character {first_difference(seed, said[0]) + 1} on" if said else "")
        + f": give the very text as prompts={{{agent!r}: ...}}, with placeholders where the app puts values "
        "in (lightning.Prompt), or take it in the app from "
        f"lightning.prompt({agent!r}, default)"
    )


def system_texts(messages: Iterable[Message]) -> list[str]:
    """The texts of system messages, byte for byte, each part apart; empty ones are left out."""
    return [
        str(part["content"])
        for message in messages
        if message["role"] in ("system", "developer")
        for part in message["parts"]
        if part.get("content")
    ]


def first_difference(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class PinnedPrompts:
    """The texts of a run's prompt versions, which never change: each is read from the store once."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run_id = run.id
        self._seeds = read_declared(run)
        self._known: dict[tuple[str, int], Pinned] = {}

    async def find(self, versions: Mapping[str, int]) -> dict[str, Pinned]:
        """The prompts of a rollout with these versions, by name. Raises NotFoundError for an unknown one."""
        return {name: await self._find(name, version) for name, version in versions.items()}

    async def _find(self, name: str, version: int) -> Pinned:
        if (name, version) not in self._known:
            versions = await self._store.list_resources(self._run_id, name)
            found = get_version(versions, version)
            seed = self._seeds.get(name) or Prompt(str(versions[0].uri))  # found after the run was read
            self._known[name, version] = Pinned(seed, str(found.uri))
        return self._known[name, version]


def written(prompts: Mapping[str, Prompt]) -> dict[str, Any]:
    """Declared prompts as a run's configuration has them."""
    return {name: [each.text, list(each.placeholders)] for name, each in prompts.items()}


def read_declared(run: Run) -> dict[str, Prompt]:
    """The prompts that a run was begun with; with `prompts="all"` those that were found, none before."""
    declared: Any = run.config.get(FOUND) or run.config.get(DECLARED) or {}
    if declared == ALL:
        return {}
    return {name: Prompt(text, tuple(placeholders)) for name, (text, placeholders) in declared.items()}


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
