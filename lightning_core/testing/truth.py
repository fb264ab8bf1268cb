"""The truth travels in the prompt, the tags in the headers: what a test compares.

A prompt carries marks such as `<<rollout=r1>><<agent=planner>><<nonce=7>>`, written where the test
knows for certain who is calling. The nonce stands for one logical call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_core.dialects.base import Dialect
from lightning_core.dialects.chat import Chat

_MARK = re.compile(r"<<(\w+)=([^>]*)>>")


def mark(**values: object) -> str:
    """The text that says so in a prompt."""
    return "".join(f"<<{name}={value}>>" for name, value in values.items())


def read_marks(body: Mapping[str, Any], dialect: type[Dialect] = Chat) -> dict[str, str]:
    """The marks in a request; of equal names the last one counts."""
    parts = [part for message in dialect.messages(body) for part in message["parts"]]
    return find_marks("".join(part["content"] for part in parts if part["type"] == "text"))


def find_marks(text: str) -> dict[str, str]:
    """The marks in any text; of equal names the last one counts."""
    return dict(_MARK.findall(text))


@dataclass(frozen=True, slots=True)
class Tagged:
    """One request as it was received: what it says of itself and how it was tagged."""

    marks: Mapping[str, str]
    rollout: str | None
    agent: str | None
    call: str | None


def mistakes(received: Iterable[Tagged]) -> list[str]:
    """Every tag that is missing or wrong; call ids and nonces must match one to one."""
    found = []
    calls: dict[str, set[str | None]] = defaultdict(set)
    nonces: dict[str | None, set[str]] = defaultdict(set)
    for request in received:
        for name, tag in (("rollout", request.rollout), ("agent", request.agent)):
            if tag is None or tag != request.marks.get(name):
                found.append(f"{name} is {tag!r}, truth {dict(request.marks)}")
        if request.call is None:
            found.append(f"no call id, truth {dict(request.marks)}")
        if nonce := request.marks.get("nonce"):
            calls[nonce].add(request.call)
            nonces[request.call].add(nonce)
    found += [f"nonce {nonce} has calls {ids}" for nonce, ids in calls.items() if len(ids) != 1]
    return found + [f"call {call} has nonces {some}" for call, some in nonces.items() if len(some) != 1]
