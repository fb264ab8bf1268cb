"""A question to the console: the names and values of an address, read strictly, about a run of the shelf."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.console.shelf import Found, Shelf
from lightning_core.errors import ConfigError
from lightning_core.stores.base import Store


class PageRequest:
    """One request to the console. Every method raises ConfigError for a value that can't be read."""

    def __init__(self, shelf: Shelf, asked: Sequence[tuple[str, str]]) -> None:
        self.shelf = shelf
        self._asked = asked

    async def run(self) -> tuple[Store, Found]:
        """The run named by `run`, and its store for reading."""
        found = await self.shelf.get(self.word("run"))
        return await self.shelf.read(found), found

    def words(self, name: str) -> list[str]:
        """All values under that name."""
        return [value for key, value in self._asked if key == name and value]

    def find(self, name: str) -> str | None:
        """The value; None if there is none."""
        return next(iter(self.words(name)), None)

    def word(self, name: str) -> str:
        """The value, which must be there."""
        value = self.find(name)
        if value is None:
            raise ConfigError(f"the address names no {name}: add {name}=...")
        return value

    def number(self, name: str) -> int | None:
        """A whole number; None if it is not given."""
        value = self.find(name)
        if value is None:
            return None
        if not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > 12:
            raise ConfigError(f"{name}={value!r} is no whole number")
        return int(value)

    def figure(self, name: str) -> float | None:
        """A number; None if it is not given."""
        value = self.find(name)
        try:
            return None if value is None else float(value)
        except ValueError:
            raise ConfigError(f"{name}={value!r} is no number") from None
