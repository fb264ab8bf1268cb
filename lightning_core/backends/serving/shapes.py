"""Conversations in shapes that more chat templates take.

A template may refuse several system messages, one after the beginning, any at all, or two messages of the
user in a row. Or it renders nothing of those it does not expect. Then the conversation is rendered in the
first of `SHAPES` that it takes. No message moves to another place, so that a conversation that goes on still
begins with the tokens of its calls before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

Message = dict[str, Any]
Shape = Callable[[Sequence[Message]], list[Message]]
BETWEEN: Final = "\n\n"
"""Between texts that are joined, as in Gemma's and Mistral's own templates."""


def is_unusual(messages: Sequence[Message]) -> bool:
    """Whether a template may drop a message without a word: a late system message, or two of a role in a
    row."""
    roles = [message.get("role") for message in messages]
    return "system" in roles[1:] or any(a == b != "tool" for a, b in pairwise(roles))


def lost(messages: Iterable[Message], text: str) -> str | None:
    """The beginning of a message of the system or the user that is not in the rendered text; None if all
    are."""
    for message in messages:
        said = str(message.get("content") or "").strip()
        if message.get("role") in ("system", "user") and said not in text:
            return f"{message['role']}: {said[:40]!r}"
    return None


def joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role as one message."""
    found: list[Message] = []
    for message in messages:
        before = found[-1] if found else {}
        role = message.get("role")
        if role == before.get("role") != "tool" and not before.get("tool_calls"):
            texts = filter(None, (before.get("content"), message.get("content")))
            found[-1] = {**before, **message, "content": BETWEEN.join(texts)}
        else:
            found.append(message)
    return found


def late_as_user(messages: Sequence[Message]) -> list[Message]:
    """Neighbours joined, and system messages after the beginning as the user's."""
    first, rest = joined(messages[:1]), list(messages[1:])
    while rest and rest[0].get("role") == "system" == (first[0].get("role") if first else None):
        first = joined([*first, rest.pop(0)])
    users = [{**each, "role": "user"} if each.get("role") == "system" else each for each in rest]
    return joined([*first, *users])


def all_as_user(messages: Sequence[Message]) -> list[Message]:
    """Neighbours joined, and every system message as the user's."""
    return joined([{**each, "role": "user"} if each.get("role") == "system" else each for each in messages])


SHAPES: Final[tuple[tuple[str, Shape], ...]] = (
    ("with messages of one role in a row joined", joined),
    ("with later system messages as the user's", late_as_user),
    ("with system messages as the user's", all_as_user),
)
"""Each change of the messages: its description and its function."""
