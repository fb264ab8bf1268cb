"""CPU time and memory of processes, as the kernel counts them (Linux)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
CPUCLOCK_SCHED = 2
"""With a process id it makes the clock of that process, in nanoseconds where `stat` has ticks of 10 ms."""


def cpu_seconds(pid: int) -> float:
    """Used so far by the process, all that it has started and that still run, and those it has buried."""
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        with suppress(OSError):  # it has ended meanwhile: its parent counts it
            total += time.clock_gettime(~one << 3 | CPUCLOCK_SCHED)
        total += sum(times(f"/proc/{one}/stat")[2:]) / TICK
        waiting += children(one)
    return total


def rss_bytes(pid: int) -> int:
    """Resident memory of the process alone."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def parent(pid: int) -> int:
    return int(_fields(f"/proc/{pid}/stat")[1])


def machine() -> dict[str, object]:
    """Describes the machine of the measurements."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model[0].partition(": ")[2] if model else os.uname().machine,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "kernel": f"{os.uname().sysname} {'.'.join(os.uname().release.split('.')[:2])}",
    }


def _fields(stat: str) -> list[str]:
    """Returns the fields of a `stat` file after the name in parentheses, which may hold anything."""
    return Path(stat).read_text().rpartition(")")[2].split()


def times(stat: str) -> list[int]:
    """Returns the user and system time of a process or thread in ticks, its own and its ended children's,
    from its `stat` file. Empty if it has ended."""
    try:
        return [int(field) for field in _fields(stat)[11:15]]
    except OSError:  # it has ended meanwhile: its parent counts it
        return []


def children(pid: int) -> list[int]:
    """Processes that it has started, or taken over, and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue
    return found
