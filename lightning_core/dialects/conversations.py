"""Conversations that a request may go on from by the id of an earlier response.

Each attempt of a rollout has its own: one rollout can't go on from another's response. They live in this
gateway's memory; how many attempts, how many responses of each, and how many bytes of all is bounded, and the
least recently used go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.dialects.base import Owner
from lightning_core.dialects.writing import to_json
from lightning_core.errors import ApiError

_MOST_ATTEMPTS: Final = 4096
_MOST_RESPONSES: Final = 1024
_MOST_BYTES: Final = 256 * 2**20
"""Of all that is kept, as JSON."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request and its reply added to a conversation."""

    before: Turn | None
    messages: tuple[dict[str, Any], ...]


def messages_of(turn: Turn | None) -> list[dict[str, Any]]:
    """The conversation up to a turn and with it."""
    turns = []
    while turn is not None:
        turns.append(turn.messages)
        turn = turn.before
    return [message for messages in reversed(turns) for message in messages]


class Conversations:
    """The turns that can be gone on from."""

    def __init__(
        self,
        *,
        attempts: int = _MOST_ATTEMPTS,
        responses: int = _MOST_RESPONSES,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._attempts = attempts
        self._responses = responses
        self._free = most_bytes
        self._turns: OrderedDict[Owner, OrderedDict[str, tuple[Turn, int]]] = OrderedDict()
        """Each turn with its bytes."""
        self._lock = threading.Lock()
        """A long request is read in a thread of its own."""

    def keep(self, owner: Owner, response_id: str, turn: Turn) -> None:
        """Let later requests go on from this response."""
        size = len(to_json(turn.messages))
        with self._lock:
            turns = self._turns.setdefault(owner, OrderedDict())
            self._turns.move_to_end(owner)
            self._free += turns.pop(response_id, (None, 0))[1] - size
            turns[response_id] = turn, size
            while len(self._turns) > self._attempts or (self._free < 0 and len(self._turns) > 1):
                _, dropped = self._turns.popitem(last=False)
                self._free += sum(each for _, each in dropped.values())
            while len(turns) > self._responses or (self._free < 0 and len(turns) > 1):
                self._free += turns.popitem(last=False)[1][1]

    def get(self, owner: Owner, response_id: str) -> Turn:
        """The turn that ended in this response. Raises ApiError if it is not known here."""
        with self._lock:
            turns = self._turns.get(owner, OrderedDict())
            if response_id in turns:
                self._turns.move_to_end(owner)
                turns.move_to_end(response_id)
                return turns[response_id][0]
        raise ApiError(
            f"response {response_id!r} is not known to this attempt of the rollout: it was made "
            "elsewhere, with store=false, too long ago, or before the gateway was restarted; send the "
            "whole conversation as input, without previous_response_id",
            status=404,
            code="previous_response_not_found",
            param="previous_response_id",
        )
