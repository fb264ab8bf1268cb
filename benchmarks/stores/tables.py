"""The section of benchmarks/results/README.md about stores and rollouts, made of the record."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.stores.record import PEER, Record
from benchmarks.stores.timing import Cost

GOALS = {"enqueue": 0.3, "lease": 0.4, "record a call": 0.7}
NAMES = {"memory": "memory", "sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
MEANING = "Cells are the median of the rounds, with their range in brackets."


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range; the median alone where there is one value."""
    low, middle, high = min(values), statistics.median(values), max(values)
    if len(values) == 1:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = "|".join(["---"] + ["---:"] * (len(heading) - 1))
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, *lines)).replace(
        "\n", f"\n|{rule}|\n", 1
    )


def cpu_table(record: Record, label: str) -> str:
    """CPU of every operation, caller and server together, and how much more the peer needs."""
    stores = list(record.operations[0])
    names = list(record.operations[0][stores[0]][label])

    def values(store: str, name: str) -> list[float]:
        return [costs[store][label][name].cpu_ms for costs in record.operations]

    lines = []
    for name in names:
        goal = f" (goal ≤ {GOALS[name]})" if name in GOALS else ""
        lines.append([name + goal, *(spread(values(store, name), 3) for store in stores)])
    return table(["", *map(_heading, stores)], lines)


def ratio_table(record: Record, label: str) -> str:
    """The peer's CPU over ours, within each round."""
    ours = [store for store in record.operations[0] if store != PEER]

    def ratios(store: str, name: str) -> list[float]:
        pairs = [(costs[PEER][label][name], costs[store][label][name]) for costs in record.operations]
        return [theirs.cpu_ms / one.cpu_ms for theirs, one in pairs]

    names = list(record.operations[0][PEER][label])
    lines = [[name, *(spread(ratios(store, name), 1) for store in ours)] for name in names]
    return table([f"CPU of {PEER} ÷ ours, {label}", *map(_heading, ours)], lines)


def pace_table(record: Record, label: str) -> str:
    """Operations per second."""
    stores = list(record.operations[0])

    def values(store: str, name: str) -> list[float]:
        return [1000 / costs[store][label][name].wall_ms for costs in record.operations]

    names = list(record.operations[0][stores[0]][label])
    return table(
        [f"per second, {label}", *map(_heading, stores)],
        [[name, *(spread(values(store, name), 0) for store in stores)] for name in names],
    )


APART = {
    "http": ("HTTP was measured", "in the same rounds as the SQLite store behind it"),
    "conversation": (
        "A harness's conversation of 60 calls, each with 450 new words, was measured",
        "caller and server together",
    ),
}
"""Parts that were measured later than the others, and elsewhere."""


def apart(record: Record, part: str) -> str:
    """Where one of these was measured."""
    found, (begin, end) = record.circumstances[part], APART[part]
    return (
        f"{begin} on {found.machine['cores']} cores of {found.machine['processor']} at a load of "
        f"{min(found.load):.0f} to {max(found.load):.0f}, {end}:"
    )


def http_table(record: Record) -> str:
    """Every operation over HTTP, beside the same on the SQLite store behind it."""
    lines = []
    for name in record.http[0]["http"]["16 callers"]:
        cells = [name]
        for label in ("1 caller", "16 callers"):
            for store in ("sqlite", "http"):
                cells.append(spread([costs[store][label][name].cpu_ms for costs in record.http], 3))
        paces = [1000 / costs["http"]["16 callers"][name].wall_ms for costs in record.http]
        lines.append([*cells, spread(paces, 0)])
    heading = ["SQLite, 1 caller", "HTTP, 1 caller", "SQLite, 16 callers", "HTTP, 16 callers"]
    return table(["CPU ms over HTTP", *heading, "HTTP per second, 16 callers"], lines)


def empty_table(record: Record) -> str:
    lines = []
    for store, paces in record.empty[0].items():
        cells = [_heading(store)]
        for workers in (1, 2):
            if workers in paces:
                rounds = [by[store][workers] for by in record.empty]
                cells.append(spread([one.per_second for one in rounds], 0))
                cells.append(spread([one.workers_ms + one.server_ms for one in rounds], 2))
            else:
                cells += ["–", "–"]
        lines.append(cells)
    heading = [
        "empty rollouts",
        "per second, 1 worker",
        "CPU ms each",
        "per second, 2 workers",
        "CPU ms each",
    ]
    return table(heading, lines)


def waiting_table(record: Record) -> str:
    lines = []
    for store in record.waiting[0]:
        rounds = [by[store] for by in record.waiting]
        said = [one.statements for one in rounds if one.statements is not None]
        wakes = [wake for by in record.wakes for wake in by.get(store, ())]
        lines.append(
            [
                _heading(store),
                spread(said, 0) if said else "–",
                spread([one.client_ms for one in rounds], 2),
                spread([one.server_ms for one in rounds], 2),
                spread(wakes, 1) if wakes else "–",
            ]
        )
    heading = [
        "waiting for 4,000",
        "statements a second",
        "CPU ms a second",
        "of the server",
        "wakes after ms",
    ]
    return table(heading, lines)


def size_table(record: Record) -> str:
    """CPU of each operation at the least and the greatest size."""
    lines = []
    for store, by_size in record.sizes.items():
        least, most = min(by_size), max(by_size)
        for name in by_size[least][0]:
            lines.append(
                [
                    f"{_heading(store)}: {name}",
                    *(spread(_cpu(repeats, name), 3) for repeats in by_size.values()),
                    f"{_middle(by_size[most], name) / _middle(by_size[least], name):.2f}",
                ]
            )
    sizes = [f"{size:,}" for size in next(iter(record.sizes.values()))]
    return table(["CPU ms with so many rollouts", *sizes, "last ÷ first"], lines)


def gateway_table(record: Record) -> str:
    lines = []
    for store, memory in record.gateway.items():
        half = len(memory.mib) // 2
        seen = [memory.mib[1], memory.mib[half], memory.mib[-1]]
        lines.append([_heading(store), *(f"{mib:.1f}" for mib in seen), f"{memory.growth():.1f}"])
    calls = next(iter(record.gateway.values())).calls
    heading = [f"MiB after {calls[1]:,} calls", f"{calls[len(calls) // 2]:,}", f"{calls[-1]:,}"]
    return table(["gateway's memory", *heading, "bytes more for each call"], lines)


def conversation_table(record: Record) -> str:
    lines = []
    for store in record.conversation[0]:
        talks = [by[store] for by in record.conversation]
        lines.append(
            [
                _heading(store),
                spread([talk.mib for talk in talks], 2),
                spread([talk.first_ms for talk in talks], 1),
                spread([talk.last_ms for talk in talks], 1),
                spread([talk.read_ms for talk in talks], 0),
            ]
        )
    heading = ["MiB", "CPU ms to record one of the first 5 calls", "one of the last 5", "to read all 60"]
    return table(["a conversation of 60 calls", *heading], lines)


def _cpu(repeats: list[dict[str, Cost]], name: str) -> list[float]:
    return [costs[name].cpu_ms for costs in repeats]


def _middle(repeats: list[dict[str, Cost]], name: str) -> float:
    return statistics.median(_cpu(repeats, name))


def _heading(store: str) -> str:
    return NAMES.get(store, store)


PARTS: dict[str, Callable[[Record], list[str]]] = {
    "operations": lambda record: [
        *(
            f"CPU milliseconds of one operation, {label}, caller and server together:\n\n"
            + cpu_table(record, label)
            for label in next(iter(record.operations[0].values()))
        ),
        *(pace_table(record, label) for label in list(next(iter(record.operations[0].values())))[1:]),
        *(ratio_table(record, label) for label in record.operations[0].get(PEER, ())),
    ],
    "empty": lambda record: [empty_table(record)],
    "waiting": lambda record: [waiting_table(record)],
    "sizes": lambda record: [size_table(record)],
    "gateway": lambda record: [gateway_table(record)],
    "conversation": lambda record: [apart(record, "conversation"), conversation_table(record)],
    "http": lambda record: [apart(record, "http"), http_table(record)],
}


def render(record: Record) -> str:
    """All tables of the parts that were measured."""
    text = [MEANING + " " + where(record)]
    for part, tables in PARTS.items():
        if part in record.circumstances:
            text += tables(record)
    return "\n\n".join(text)


def where(record: Record) -> str:
    """Machine, dates and how busy it was."""
    parts = {part: found for part, found in record.circumstances.items() if part not in APART}
    if not parts:
        return ""
    all_of_them = list(parts.values())
    machine = all_of_them[0].machine
    days = sorted({one.made_at[:10] for one in all_of_them})
    loads = [f"{part} {min(one.load):.0f} to {max(one.load):.0f}" for part, one in parts.items()]
    return (
        f"Measured {' to '.join(days[:: max(len(days) - 1, 1)])} on {machine['cores']} cores of "
        f"{machine['processor']}, {machine['memory_gib']} GiB, {machine['kernel']}, beside other "
        "work. At a load of 15 CPU times were up to twice those at 5, and wall times many times those; load "
        "during each part: "
        f"{', '.join(loads)}."
    )
