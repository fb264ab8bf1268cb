"""Whether a Ray cluster has room for a run now: what it has may be in use by others.

verl asks Ray for its workers' GPUs and waits without an end. So the same is asked for before, in groups of
the same shape, and given back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import ray
from ray.util import placement_group, remove_placement_group

from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.errors import BackendError

COLOCATED: Final = 3
"""Groups of workers that may share a GPU: policy, reference, critic. Each takes a CPU."""
SERVING_CPUS: Final = 2
"""What verl asks for beside each GPU that only serves."""
ROOM_SECONDS: Final = 60.0
"""How long GPUs may take to become free: those of a run that has just ended are within seconds."""

Group = list[dict[str, float]]
"""What workers need that must be on one machine; each its own."""


def groups(settings: VerlSettings, gpus: int) -> list[Group]:
    """All that verl will ask for, with so many GPUs of each machine that train."""
    training: list[Group] = [[{"CPU": COLOCATED, "GPU": 1}] * gpus] * settings.nodes
    if not settings.separate:
        return training
    serving: Group = [{"CPU": SERVING_CPUS, "GPU": 1}] * settings.together
    return training + [serving] * (settings.serving_gpus * settings.nodes // settings.together)


def check_room(wanted: Sequence[Group], seconds: float = ROOM_SECONDS) -> None:
    """Raise BackendError if the cluster that was joined does not have all that free within the time."""
    free = ray.available_resources()
    asked = [placement_group(group, strategy="STRICT_PACK") for group in wanted]
    end = time.monotonic() + seconds
    try:
        if not all(group.wait(max(0.0, end - time.monotonic())) for group in asked):
            raise BackendError(_told(wanted, free, seconds))
    finally:
        for group in asked:
            remove_placement_group(group)


def _told(wanted: Sequence[Group], free: dict[str, float], seconds: float) -> str:
    each = " + ".join(
        f"{len(group)} GPU{'s' * (len(group) > 1)} with {sum(worker['CPU'] for worker in group):g} CPUs"
        for group in wanted
    )
    return (
        f"the Ray cluster did not have the room within {seconds:g} s: the run needs {each}, each together on "
        f"one machine, and of all machines {free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} CPUs were "
        "free; see who uses them (`ray status`), wait for that, or lower gpus, nodes or serving_gpus"
    )
