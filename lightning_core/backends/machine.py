"""The memory of this machine, or of the container that this process is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def machine_memory() -> int | None:
    """Bytes of main memory, no more than a container may use; None where the system does not tell."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return min(machine, *_container_limits())


def _container_limits(root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Yields the memory limits of this process's control group and of the container's root, in bytes.

    https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html
    """
    yield 1 << 62
    try:
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:  # no Linux
        return
    files = {"": (root, "memory.max"), "memory": (root / "memory", "memory.limit_in_bytes")}
    for _, controllers, path in own:
        if controllers in files:
            below, name = files[controllers]
            for folder in (below, below / path.lstrip("/")):
                with suppress(OSError, ValueError):  # no such group here, or "max"
                    yield int((folder / name).read_text())
