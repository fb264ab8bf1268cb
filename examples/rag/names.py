"""Names of people, works and places: pairs of two words, of which an eighth is kept for each held-out split.

Every word is seen in training, but a held-out *pair* never is: nobody who was trained on the training split
has seen a name of the others.
"""

POOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "person": (
        (
            "Ada", "Boris", "Clara", "Dmitri", "Elsa", "Felix", "Greta", "Hugo",
            "Irene", "Jonas", "Karin", "Leo", "Mila", "Nils", "Olga", "Pavel",
            "Rita", "Simon", "Tilda", "Ulf", "Vera", "Walter", "Xenia", "Yusuf",
            "Zelda", "Anton", "Bianca", "Cyril", "Dora", "Emil", "Fiona", "Gustav",
        ),
        (
            "Abbott", "Barlow", "Carver", "Draper", "Ekman", "Fisher", "Garner", "Holt",
            "Ingram", "Jensen", "Keller", "Lindqvist", "Mercer", "Norris", "Osborn", "Palmer",
            "Quist", "Rhodes", "Sutter", "Thorne", "Usher", "Vance", "Weaver", "Yates",
            "Zander", "Becker", "Conrad", "Dalton", "Engel", "Foster", "Graves", "Harper",
        ),
    ),
    "work": (
        (
            "Ancient", "Bright", "Crimson", "Distant", "Early", "Frozen", "Gentle", "Hidden",
            "Iron", "Jolly", "Kind", "Lonely", "Misty", "Narrow", "Open", "Pale",
            "Quiet", "Royal", "Silver", "Tender", "Upper", "Velvet", "Wild", "Young",
            "Broken", "Cold", "Dusty", "Endless", "Faint", "Golden", "Heavy", "Secret",
        ),
        (
            "Anchor", "Beacon", "Candle", "Dolphin", "Ember", "Falcon", "Glacier", "Heron",
            "Island", "Jewel", "Kettle", "Lantern", "Mirror", "Needle", "Orchard", "Pearl",
            "Quarry", "Raven", "Shadow", "Thunder", "Umbrella", "Valley", "Willow", "Yard",
            "Arrow", "Compass", "Drum", "Crown", "Garden", "Harbor", "Ladder", "Sparrow",
        ),
    ),
    "place": (
        (
            "Alder", "Birch", "Cedar", "Daisy", "Elm", "Fern", "Granite", "Hazel",
            "Ivy", "Juniper", "Kelp", "Laurel", "Maple", "Nettle", "Oak", "Pine",
            "Robin", "Sorrel", "Teal", "Rowan", "Ash", "Bramble", "Clover", "Flint",
            "Heath", "Jasper", "Lark", "Moss", "Otter", "Plover", "Stone", "Thistle",
        ),
        (
            "Bay", "Cross", "Dale", "End", "Ford", "Gate", "Hill", "Inlet",
            "Junction", "Knoll", "Landing", "Mill", "Nook", "Point", "Quay", "Ridge",
            "Spring", "Terrace", "Vale", "Wharf", "Bend", "Corner", "Downs", "Edge",
            "Fields", "Grove", "Haven", "Lake", "Marsh", "Park", "Reach", "Shore",
        ),
    ),
}  # fmt: skip
"""The first and second words of each kind of name; companies and towns are called after places."""

_EIGHTHS = {"validation": (6,), "test": (7,), "train": (0, 1, 2, 3, 4, 5)}


def get_names(pool: str, split: str) -> list[str]:
    """All names of a pool that belong to a split; no name belongs to two."""
    first, second = POOLS[pool]
    return [
        f"{left} {right}"
        for i, left in enumerate(first)
        for j, right in enumerate(second)
        if (i + j) % 8 in _EIGHTHS[split]
    ]
