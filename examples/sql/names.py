"""Names of tables and columns: a noun and a suffix, with a quarter of the pairs kept from training.

Every noun and every suffix is seen in training, but a held-out *pair* never is: no policy that was trained on
the training databases has seen a name of the others. A few columns have the same name everywhere: `id`,
`name`, `price`, `quantity`, `size`, `status` and `deleted`.
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
    "category": ("color", "region", "type", "kind", "city", "brand"),
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
    order = [noun for nouns in NOUNS.values() for noun in nouns]
    return tuple(
        Name(noun, suffix)
        for noun in NOUNS[kind]
        for j, suffix in enumerate(SUFFIXES)
        if ((order.index(noun) + j) % 4 == 3) == held_out
    )


def get_table_names(split: str) -> tuple[Name, ...]:
    """The names of tables of "train", "validation" or "test"; no name is in two of them.

    So no question and no query is in two splits, as both name the table.
    """
    held_out = get_names("table", True)
    shares = {"train": get_names("table", False), "validation": held_out[::4]}
    return shares[split] if split in shares else tuple(n for n in held_out if n not in shares["validation"])
