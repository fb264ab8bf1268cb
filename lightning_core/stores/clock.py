"""The clock that leases of one machine run by. It can't be set, and goes on while the machine sleeps.

It begins with the machine, and all its processes share it. So its readings mean nothing after the next start
of the machine, nor on another one: each lease says by which clock it was made.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def clock_name() -> str:
    """Which clock `seconds` reads; "" for the time of day, where the system names no start of the machine."""
    try:
        return _BOOT_ID.read_text().strip() if hasattr(time, "CLOCK_BOOTTIME") else ""
    except OSError:
        return ""


def seconds() -> float:
    """What that clock shows."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if clock_name() else time.time()
