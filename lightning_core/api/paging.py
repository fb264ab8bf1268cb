"""Long lists, a page at a time: `after` is what the page before gave as `next`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from fastapi import Query

from lightning_core.errors import NotFoundError

T = TypeVar("T")
_MOST: Final = 10_000
Integer = Annotated[int | None, Query(ge=-(2**63) + 1, le=2**63 - 1)]
"""What every store can look for."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted."""

    after: Annotated[str | None, Query(description="`next` of the page before; none for the first.")] = None
    limit: Annotated[int, Query(ge=1, le=_MOST, description="The most entries of a page.")] = 1_000

    def of(self, entries: Sequence[T], name: Callable[[T], str]) -> tuple[list[T], str | None]:
        """The page, and the name of its last entry if more follow. NotFoundError for an unknown `after`."""
        first = 0 if self.after is None else self._place(entries, name) + 1
        page = list(entries[first : first + self.limit])
        return page, name(page[-1]) if first + self.limit < len(entries) else None

    def _place(self, entries: Sequence[T], name: Callable[[T], str]) -> int:
        for place, entry in enumerate(entries):
            if name(entry) == self.after:
                return place
        raise NotFoundError(
            f"after={self.after!r} is not in the list; give what the page before had as `next`"
        )
