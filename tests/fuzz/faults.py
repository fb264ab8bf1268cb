"""Faults that were found, and how each is tried again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.fuzz.grammar import Case, Suite

Kind = Literal["answer", "hang", "crash", "memory", "bystander", "waiting", "records", "descriptors"]
_SHOWN = 3
"""Cases shown of each kind of fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that may not happen."""

    kind: Kind
    what: str
    cases: tuple[int, ...] = ()
    """The case that did it; of a fault that shows elsewhere, all that were on their way."""
    sure: bool = True
    """Whether it is known to be these cases."""

    @property
    def name(self) -> str:
        """Equal for faults that are likely the same."""
        return f"{self.kind}: {re.sub(r'[0-9a-f]{8,}|[0-9]+', '#', self.what)[:90]}"


@dataclass(slots=True)
class Faults:
    """All that were found, those that are likely the same together."""

    suite: Suite
    seed: int
    found: dict[str, list[Fault]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(same) for same in self.found.values())

    def add(self, fault: Fault) -> bool:
        """Note a fault; whether it is the first of its kind."""
        same = self.found.setdefault(fault.name, [])
        same.append(fault)
        return len(same) == 1

    def lines(self) -> Iterable[str]:
        """Yields the printed lines."""
        again = f"python -m tests.fuzz --suite {self.suite.name} --seed {self.seed}"
        for same in sorted(self.found.values(), key=len, reverse=True):
            yield f"FAULT ({len(same)} times) {same[0].kind}: {same[0].what}"
            for fault in same[:_SHOWN]:
                if fault.cases:
                    which = "case" if fault.sure else f"one of {len(fault.cases)} cases"
                    numbers = " ".join(map(str, fault.cases))
                    yield f"  {which}; again: {again} --only {numbers}"
            if same[0].cases and same[0].sure:
                yield f"  {curl(self.suite.make(self.seed, same[0].cases[0]))}"


def curl(case: Case) -> str:
    """The case as a command; `$URL`, `$TOKEN`, `{live}` and `{bystander}` are the reader's."""
    headers = " ".join(f"-H {name}:{value.decode('latin-1')!r}" for name, value in case.headers)
    body = case.body if len(case.body) <= 600 else case.body[:300] + b" ... " + case.body[-100:]
    key = "-H 'authorization: Bearer $TOKEN' " if case.key != "none" else ""
    sent = f"token {case.key}, sent {case.manner}, {len(case.body)} bytes"
    content = f"--data-binary {body.decode('latin-1')!r}"
    return f"curl -X {case.method} $URL{case.path} {key}{headers} {content}  # {sent}"
