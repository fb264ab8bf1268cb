"""The measurements in benchmarks/results/stores.json: for each part its rounds and its machine."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import machine
from benchmarks.stores.conversation import Talk
from benchmarks.stores.empty import Pace
from benchmarks.stores.gateway import Memory
from benchmarks.stores.timing import Cost, Costs
from benchmarks.stores.waiting import Idle

PATH = Path("benchmarks/results/stores.json")
PEER = "agentlightning 0.3.0"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """When and where a part was measured."""

    made_at: str
    machine: dict[str, Any]
    load: tuple[float, float]
    """How many processes wanted a core on average, when it began and when it ended."""


@dataclass(slots=True)
class Record:
    """The parts that have been measured, each in rounds, each round by store."""

    operations: list[dict[str, Costs]] = field(default_factory=list)
    wakes: list[dict[str, list[float]]] = field(default_factory=list)
    """Milliseconds from a finish to the waiter's return."""
    empty: list[dict[str, dict[int, Pace]]] = field(default_factory=list)
    """Rounds by the number of workers."""
    waiting: list[dict[str, Idle]] = field(default_factory=list)
    sizes: dict[str, dict[int, list[dict[str, Cost]]]] = field(default_factory=dict)
    """The repeats by store and size."""
    gateway: dict[str, Memory] = field(default_factory=dict)
    http: list[dict[str, Costs]] = field(default_factory=list)
    conversation: list[dict[str, Talk]] = field(default_factory=list)
    circumstances: dict[str, Circumstances] = field(default_factory=dict)
    """Circumstances by part."""

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_rounded(asdict(self)), indent=1) + "\n")

    def updated(self, found: Record) -> Record:
        """With the parts that were `found` in place of its own; sizes and memory by store, as these are not
        measured in common rounds."""
        return Record(
            operations=found.operations or self.operations,
            wakes=found.wakes or self.wakes,
            empty=found.empty or self.empty,
            waiting=found.waiting or self.waiting,
            sizes={**self.sizes, **found.sizes},
            gateway={**self.gateway, **found.gateway},
            http=found.http or self.http,
            conversation=found.conversation or self.conversation,
            circumstances={**self.circumstances, **found.circumstances},
        )

    @classmethod
    def read(cls, path: Path) -> Record:
        """Reads the record; empty if there is no file."""
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        return cls(
            operations=_rounds(found["operations"]),
            http=_rounds(found.get("http", [])),
            conversation=[
                {store: Talk(**talk) for store, talk in by.items()} for by in found.get("conversation", [])
            ],
            wakes=found["wakes"],
            empty=[
                {store: {int(n): Pace(**pace) for n, pace in paces.items()} for store, paces in by.items()}
                for by in found["empty"]
            ],
            waiting=[{store: Idle(**idle) for store, idle in by.items()} for by in found["waiting"]],
            sizes={
                store: {int(size): [_operations(one) for one in repeats] for size, repeats in by.items()}
                for store, by in found["sizes"].items()
            },
            gateway={store: Memory(**memory) for store, memory in found["gateway"].items()},
            circumstances={
                part: Circumstances(one["made_at"], one["machine"], (one["load"][0], one["load"][1]))
                for part, one in found["circumstances"].items()
            },
        )


def circumstances(load_before: float) -> Circumstances:
    """Returns the circumstances of a part that ends now."""
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Circumstances(made_at, machine(), (round(load_before, 1), round(os.getloadavg()[0], 1)))


def _rounds(found: list[dict[str, Any]]) -> list[dict[str, Costs]]:
    return [{store: _costs(costs) for store, costs in by.items()} for by in found]


def _costs(found: dict[str, Any]) -> Costs:
    return {label: _operations(by) for label, by in found.items()}


def _operations(found: dict[str, Any]) -> dict[str, Cost]:
    return {name: Cost(**cost) for name, cost in found.items()}


def _rounded(value: Any) -> Any:
    """Five digits are more than a measurement has."""
    match value:
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case float():
            return float(f"{value:.5g}")
    return value
