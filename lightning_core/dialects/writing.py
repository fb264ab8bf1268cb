"""Shared parts of the writers of replies: JSON, server-sent events, log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson


def to_json(content: Any) -> bytes:
    """JSON; half a surrogate pair (a model may write one into a tool's arguments) is escaped."""
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        return json.dumps(content).encode()


def event(content: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(content) + b"\n\n"


def typed_event(content: dict[str, Any]) -> bytes:
    """One server-sent event, named by its content's `type`."""
    return b"event: %b\ndata: %b\n\n" % (content["type"].encode(), to_json(content))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model of a reply, as far as its writer must know it."""

    name: str
    """Named in replies to requests that name none."""
    tokens: TokenText


class TokenText:
    """The JSON of tokens, each made once.

    The log-probabilities of one reply are hundreds of small objects that differ only in one number. They are
    joined from these pieces, and never exist as Python objects.
    """

    def __init__(self, decode: Callable[[int], str]) -> None:
        self._decode = decode
        self._heads: dict[int, bytes] = {}

    def text(self, token: int) -> str:
        """The text of one token; a part of a character is told by a replacement mark."""
        return self._decode(token)

    def logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Sequence[tuple[int, float]]]
    ) -> orjson.Fragment:
        """The list of these tokens' log-probabilities; `tops` is empty unless alternatives were asked for."""
        entries = self._entries(ids, logprobs)
        if not tops:
            content = b',"top_logprobs":[]},'.join(entries) + b',"top_logprobs":[]}' if entries else b""
        else:
            content = b",".join(
                b'%b,"top_logprobs":[%b]}' % (entry, self._alternatives(top))
                for entry, top in zip(entries, tops, strict=True)
            )
        return orjson.Fragment(b"[%b]" % content)

    def _alternatives(self, top: Sequence[tuple[int, float]]) -> bytes:
        entries = self._entries([token for token, _ in top], [logprob for _, logprob in top])
        return b"".join((b"},".join(entries), b"}")) if entries else b""

    def _entries(self, ids: Sequence[int], logprobs: Sequence[float]) -> list[bytes]:
        numbers = orjson.dumps(logprobs)[1:-1].split(b",")
        heads = self._heads
        return [
            (heads.get(token) or self._head(token)) + number
            for token, number in zip(ids, numbers, strict=False)
        ]

    def _head(self, token: int) -> bytes:
        text = self._decode(token)
        whole = "�" not in text  # half a character has no bytes that its text could tell
        fields = {"token": text, "bytes": list(text.encode()) if whole else None}
        head = orjson.dumps(fields)[:-1] + b',"logprob":'
        self._heads[token] = head
        return head
