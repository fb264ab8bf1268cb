"""Wrap a method of somebody else's class once, for any number of users, and take the wrapper back.

What is installed lives on the wrapper itself, so there is no registry to fall out of step with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_USERS = "_lightning_users"
T = TypeVar("T")


def patch(
    owner: type, name: str, user: T, wrap: Callable[[Callable[..., Any], list[T]], Callable[..., Any]]
) -> Callable[[], None]:
    """Add `user` to the wrapper of `owner.name`, placing the wrapper if there is none yet.

    `wrap(original, users)` makes the wrapper; it reads the list of users at each call, which is empty
    when it must pass through. The function returned removes this user, and the last one out restores
    the original. If others wrapped it in the meantime, theirs stays and ours passes through.
    """
    current = getattr(owner, name)
    users: list[T] | None = getattr(current, _USERS, None)
    if users is None:
        users = []
        placed = functools.wraps(current)(wrap(current, users))
        setattr(placed, _USERS, users)
        setattr(owner, name, placed)
    users.append(user)
    return functools.partial(_leave, owner, name, user, users)


def _leave(owner: type, name: str, user: T, users: list[T]) -> None:
    if user in users:
        users.remove(user)
    current = owner.__dict__[name]
    # A foreign functools.wraps copies the mark, hence the second look at what lies beneath.
    ours = getattr(current, _USERS, None) is users
    if not users and ours and not hasattr(current.__wrapped__, _USERS):
        setattr(owner, name, current.__wrapped__)
