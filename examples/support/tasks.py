"""Messages of customers. The splits share no wording and no product, so no message either."""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SPLITS: Final = ("train", "validation", "test")
PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("blue lamp", "garden chair", "rain coat", "tea pot", "desk", "bicycle pump", "red scarf"),
        "validation": ("wool hat", "bread knife", "clock"),
        "test": ("water bottle", "green sofa", "phone case", "tent", "mirror"),
    }
)
TRAIN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "refund": (
            "I was charged twice for the {p}.",
            "You took too much money for my {p}. I want it back.",
            "I sent the {p} back three weeks ago and have not been paid yet.",
            "The {p} was cheaper on your page than what I had to pay.",
        ),
        "invoice": (
            "I need a bill for the {p} for my tax office.",
            "Please send me the invoice of the {p}.",
            "My company wants a receipt for the {p}.",
            "There was no bill in the box with the {p}.",
        ),
        "card": (
            "My bank gave me a new card. How do I pay for the {p} now?",
            "I want to pay for the {p} by bank transfer from now on.",
            "My credit card has expired, and the {p} is not paid yet.",
            "Please take the money for the {p} from my other card.",
        ),
        "track": (
            "Where is my {p}?",
            "I ordered the {p} ten days ago and nothing has come.",
            "When will the {p} arrive?",
            "The parcel with the {p} has not moved since Monday.",
        ),
        "replace": (
            "The {p} arrived broken.",
            "I got something else in place of the {p}.",
            "A part of the {p} is missing in the box.",
            "The {p} came in the wrong colour.",
        ),
        "address": (
            "I have moved. Please send the {p} to my new home.",
            "Can you deliver the {p} to my office instead?",
            "I gave the wrong street for the {p}.",
            "Please bring the {p} to my neighbour's house.",
        ),
        "password": (
            "I can't log in to look at my order of the {p}.",
            "I forgot my password and want to buy the {p}.",
            "It says that my password is wrong when I try to order the {p}.",
            "I am locked out. I only wanted to see the {p}.",
        ),
        "close": (
            "Delete my account. The {p} was my last order.",
            "After the trouble with the {p} I want to leave your shop. Remove all my data.",
            "I don't want to be your customer any more, now that I have the {p}.",
            "Please close my profile. I only needed it for the {p}.",
        ),
        "rename": (
            "I got married and have a new last name. My order is the {p}.",
            "My name is spelled wrong in my profile. I bought the {p}.",
            "Please change the name on my account before I order the {p}.",
            "The letter with the {p} calls me by my old name.",
        ),
    }
)
HELD_OUT: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "validation": {
            "refund": ("You billed me two times for one {p}.",),
            "invoice": ("Can I have the paper invoice of my {p}?",),
            "card": ("I would like to use another credit card for the {p}.",),
            "track": ("I am still waiting for the {p}. Has it left?",),
            "replace": ("My {p} does not work. It was damaged on the way.",),
            "address": ("Send the {p} to a different street, please.",),
            "password": ("The login page does not accept my password. I want the {p}.",),
            "close": ("How do I cancel my account? I have my {p} and need no more.",),
            "rename": ("My profile still has my maiden name. I ordered the {p}.",),
        },
        "test": {
            "refund": (
                "I paid for two but got one {p}. Give me the difference.",
                "I want my money back for the {p}.",
            ),
            "invoice": ("Could you mail me a receipt for my {p}?", "I lost the bill of the {p}."),
            "card": (
                "The card that I gave you for the {p} was stolen. I have another.",
                "Can I pay for my {p} with a new credit card?",
            ),
            "track": ("My {p} should have been here last week.", "Has the parcel with my {p} been sent?"),
            "replace": ("The box was open and the {p} has a crack.", "You sent me the wrong {p}."),
            "address": (
                "We live in another town now. The {p} must go there.",
                "Please change where you deliver the {p}.",
            ),
            "password": (
                "How can I reset my password to order the {p}?",
                "I can't sign in to pay for my {p}.",
            ),
            "close": (
                "Erase my account, I will not buy a {p} again.",
                "I want you to delete my profile after this {p}.",
            ),
            "rename": (
                "After my wedding I have a different name. It is about the {p}.",
                "You have my first name wrong. I ordered the {p}.",
            ),
        },
    }
)


def load_tasks(split: str, limit: int | None = None) -> list[dict[str, str]]:
    """The messages of a split in a fixed order, the first `limit` of them.

    Each is a dict with `id`, `message` and `action`, the one that is right.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    wordings = TRAIN if split == "train" else HELD_OUT[split]
    drawn = [
        {"message": wording.format(p=product), "action": action}
        for action, said in wordings.items()
        for wording in said
        for product in PRODUCTS[split]
    ]
    random.Random(f"messages {split}").shuffle(drawn)
    return [{"id": f"{split}-{number}", **task} for number, task in enumerate(drawn)][:limit]
