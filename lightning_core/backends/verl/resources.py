"""The GPUs and memory of this machine, or of a Ray cluster, whose GPUs may be in use by others.

verl asks Ray for its workers' GPUs and waits without an end. So `check_free` asks before for groups of the
same shape, and gives them back.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.backends.machine import machine_memory
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.errors import BackendError, ConfigError

SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
SMI_SECONDS = 30.0
KNOCK_SECONDS = 10.0
ASK_SECONDS = 300.0
"""How long a machine of the cluster may take to say what it has; Ray starts a process on it for that."""
COLOCATED: Final = 3
"""Groups of workers that may share a GPU: policy, reference, critic. Each takes a CPU."""
SERVING_CPUS: Final = 2
"""CPUs that verl asks for beside each GPU that only serves."""
FREE_SECONDS: Final = 60.0
"""How long GPUs may take to become free: those of a run that has just ended are within seconds."""

Group = list[dict[str, float]]
"""Resources of workers that must be on one machine, one dict for each worker."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of one machine, in bytes."""

    gpus: tuple[int, ...]
    """Memory of each GPU; 0 where it could not be told."""
    memory: int | None
    """Main memory; None: unknown."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The machines that a run can have."""

    machines: tuple[Machine, ...]
    source: str
    """Where they are: "this machine", "Ray at 'auto'"."""

    @property
    def counts(self) -> tuple[int, ...]:
        """GPUs of each machine."""
        return tuple(len(machine.gpus) for machine in self.machines)

    @property
    def smallest(self) -> int | None:
        """Memory of the smallest GPU; None if nothing is known."""
        known = [size for machine in self.machines for size in machine.gpus if size]
        return min(known, default=None)

    @property
    def memory(self) -> int | None:
        """Main memory of the smallest of the machines that have GPUs, or of any if none has."""
        own = [machine for machine in self.machines if machine.gpus] or list(self.machines)
        return min((machine.memory for machine in own if machine.memory), default=None)


def find_resources(settings: VerlSettings) -> Resources:
    """Returns the resources of the cluster that a start would join, else of this machine. Raises BackendError
    if there is no such cluster."""
    if settings.address is None and not _joined():
        here = () if settings.device == "cpu" else _gpus_here()
        return Resources((Machine(here, machine_memory()),), "this machine")
    return _ask_ray(settings)


def _joined() -> bool:
    """Whether the app has joined a cluster by itself, which is then taken."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def check_gpus(settings: VerlSettings, resources: Resources) -> None:
    """Raise ConfigError if there are too few GPUs, or none and this kind of training needs them, or if those
    that serve can't be shared out."""
    counts = resources.counts
    serving = (settings.serving_gpus or count_gpus(settings, counts)) * settings.nodes
    if serving % settings.tensor_parallel:
        raise ConfigError(
            f"tensor_parallel={settings.tensor_parallel} does not divide the {serving} GPUs that serve"
        )
    if settings.device == "cpu":
        if settings.strategy != "fsdp2":
            raise ConfigError(
                f"strategy={settings.strategy!r} needs GPUs: on a processor verl trains with 'fsdp2' alone"
            )
    elif not enough(settings, counts):
        raise ConfigError(
            f"the verl backend needs {wanted(settings, counts)} and {resources.source} has "
            f"{told_counts(counts)}; lower gpus, nodes or serving_gpus, join a Ray cluster that has them "
            '(address=...), or train on this machine\'s processor with backend="local"'
        )


# counting: `counts` has the GPUs of each machine ----------------------------------------------
def count_gpus(settings: VerlSettings, counts: Sequence[int]) -> int:
    """GPUs of each machine that train: as asked, else all that do not serve on the largest `nodes` machines,
    as many on each. verl wants those of a machine together."""
    if settings.gpus is not None:
        return settings.gpus
    if settings.device == "cpu":
        return os.cpu_count() or 1
    found = sorted(counts, reverse=True)[: settings.nodes]
    return max(1, min(found, default=0) - settings.serving_gpus)


def enough(settings: VerlSettings, counts: Sequence[int]) -> bool:
    """Whether so many machines as are asked for have the GPUs that train, and all together those that serve
    as well. Whether these are where Ray can use them, `check_free` finds."""
    gpus = count_gpus(settings, counts)
    large = sum(count >= gpus for count in counts)
    return large >= settings.nodes and sum(counts) >= (gpus + settings.serving_gpus) * settings.nodes


def wanted(settings: VerlSettings, counts: Sequence[int]) -> str:
    """ "8 GPUs", "8 GPUs on each of 2 machines", "8 GPUs on one machine to train and 4 to serve"."""
    train = _gpus(count_gpus(settings, counts))
    if settings.nodes > 1:
        train += f" on each of {settings.nodes} machines"
    elif len(counts) > 1:
        train += " on one machine"
    if not settings.separate:
        return train
    together = f" ({settings.together} together)" if settings.together > 1 else ""
    return f"{train} to train and {settings.serving_gpus * settings.nodes} to serve{together}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def told_counts(counts: Sequence[int]) -> str:
    """ "8", "8 + 4": the machines without are left out."""
    return " + ".join(str(count) for count in sorted(counts, reverse=True) if count) or "0"


# asking ---------------------------------------------------------------------------------------
def _gpus_here() -> tuple[int, ...]:
    import torch

    return tuple(
        torch.cuda.get_device_properties(place).total_memory for place in range(torch.cuda.device_count())
    )


def told_gpus() -> list[int]:
    """Bytes of each GPU, as the driver's own tool says; empty where there is no such tool. Unlike torch it
    also tells in a task of Ray's that was given no GPU."""
    try:
        told = subprocess.run(SMI, capture_output=True, text=True, check=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) << 20 for line in told.stdout.split() if line.isdigit()]


def _ask_ray(settings: VerlSettings) -> Resources:
    """Returns the resources of the cluster at the address, or of the one that was joined."""
    import ray
    from ray.exceptions import RayError

    address = settings.address
    source = "the Ray that was joined" if address is None else f"Ray at {address!r}"
    before = ray.is_initialized()
    if address is not None and not before:
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise unreachable(address, error) from error
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return Resources(tuple(_machine(node, settings.device) for node in nodes), source)
    except RayError as error:
        raise BackendError(
            f"{source} does not say what its machines have: {error}; check it with `ray status`"
        ) from error
    finally:
        if not before:
            ray.shutdown()


def unreachable(address: str | None, error: BaseException) -> BackendError:
    """The error of an address at which no cluster answers."""
    return BackendError(
        f"can't reach a Ray cluster at address={address!r}: {error}; check that it runs (`ray status`), or "
        "leave the address out for one on this machine"
    )


def _knock(address: str) -> None:
    """Raise OSError if no server listens there: Ray itself tries for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS):
            pass


def _machine(node: dict[str, Any], device: str) -> Machine:
    """Ray counts GPUs and main memory; how large a GPU is only the machine itself knows."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    count = int(node["Resources"].get("GPU", 0))
    sizes: list[int] = []
    if count and device != "cpu":
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ask = ray.remote(num_cpus=0, scheduling_strategy=there)(told_gpus)
        sizes = ray.get(ask.remote(), timeout=ASK_SECONDS)
    known = (sizes + [0] * count)[:count]
    memory = node["Resources"].get("memory")
    return Machine(tuple(known), int(memory) if memory else None)


# asking for GPUs ------------------------------------------------------------------------------
def groups(settings: VerlSettings, gpus: int) -> list[Group]:
    """All that verl will ask for, with so many GPUs of each machine that train."""
    training: list[Group] = [[{"CPU": COLOCATED, "GPU": 1}] * gpus] * settings.nodes
    if not settings.separate:
        return training
    serving: Group = [{"CPU": SERVING_CPUS, "GPU": 1}] * settings.together
    return training + [serving] * (settings.serving_gpus * settings.nodes // settings.together)


def check_free(wanted: Sequence[Group], seconds: float = FREE_SECONDS) -> None:
    """Raise BackendError if the cluster that was joined does not have all that free within the time."""
    import ray
    from ray.util import placement_group, remove_placement_group

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
