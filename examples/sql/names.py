"""Names of tables and columns: a noun and a suffix, with a quarter of the pairs kept from training.

Every noun and every suffix is seen in training, but a held-out *pair* never is, so a database of the
validation or test split cannot be answered from memory: its names have to be read from its schema.
"""

from dataclasses import dataclass

SUFFIXES = ("", "old", "new", "main", "local", "base", "raw", "net")

NOUNS: dict[str, tuple[str, ...]] = {
    "table": (
        "boats", "films", "songs", "books", "rooms", "tours", "plants", "teams", "shops", "farms",
        "games", "tools", "cars", "parks", "labs", "bands", "flats", "hikes", "lamps", "trains",
    ),
    "number": (
        "weight", "speed", "height", "score", "age", "depth", "width", "rating", "length", "power",
        "noise", "heat", "stock", "debt", "wage", "rank",
    ),
    "price": ("price", "fee", "fare", "charge"),
    "quantity": ("quantity", "units", "pieces", "copies"),
    "size": ("size", "area", "bulk", "mass"),
    "category": ("color", "region", "type", "kind", "city", "brand"),
    "status": ("status", "state", "phase", "stage"),
}  # fmt: skip
"""The nouns of each kind of name. Each piece is one token of the tiny policy."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """A table or column name, such as `price_net`."""

    noun: str
    suffix: str

    @property
    def sql(self) -> str:
        """The name in a schema and a query."""
        return f"{self.noun}_{self.suffix}" if self.suffix else self.noun

    @property
    def words(self) -> str:
        """The name in a question."""
        return f"{self.noun} {self.suffix}" if self.suffix else self.noun


def get_names(kind: str, held_out: bool) -> tuple[Name, ...]:
    """All names of a kind, either those for training or the held-out ones; no name is in both."""
    return tuple(
        Name(noun, suffix)
        for i, noun in enumerate(NOUNS[kind])
        for j, suffix in enumerate(SUFFIXES)
        if ((i + j) % 4 == 3) == held_out
    )
