"""Conversations that a request may go on from by the id of an earlier response.

Each attempt of a rollout has its own: one rollout can't go on from another's response. They live in this
gateway's memory; how many attempts and how many responses of each is bounded, and the least recently
used go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.gateway.refusals import Refusal

Owner = tuple[str | None, int | None]
"""A rollout and its attempt; both None for callers without a token, who share one space."""
_MOST_ATTEMPTS: Final = 4096
_MOST_RESPONSES: Final = 1024


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

    def __init__(self, *, attempts: int = _MOST_ATTEMPTS, responses: int = _MOST_RESPONSES) -> None:
        self._attempts = attempts
        self._responses = responses
        self._turns: OrderedDict[Owner, OrderedDict[str, Turn]] = OrderedDict()
        self._lock = threading.Lock()
        """A long request is read in a thread of its own."""

    def keep(self, owner: Owner, response_id: str, turn: Turn) -> None:
        """Let later requests go on from this response."""
        with self._lock:
            turns = self._turns.setdefault(owner, OrderedDict())
            self._turns.move_to_end(owner)
            turns[response_id] = turn
            turns.move_to_end(response_id)
            if len(turns) > self._responses:
                turns.popitem(last=False)
            if len(self._turns) > self._attempts:
                self._turns.popitem(last=False)

    def get(self, owner: Owner, response_id: str) -> Turn:
        """The turn that ended in this response. Raises Refusal if it is not known here."""
        with self._lock:
            turns = self._turns.get(owner, OrderedDict())
            if response_id in turns:
                self._turns.move_to_end(owner)
                turns.move_to_end(response_id)
                return turns[response_id]
        raise Refusal(
            f"response {response_id!r} is not known to this attempt of the rollout: it was made "
            "elsewhere, with store=false, too long ago, or before the gateway was restarted; send the "
            "whole conversation as input, without previous_response_id",
            status=404,
            code="previous_response_not_found",
            param="previous_response_id",
        )
