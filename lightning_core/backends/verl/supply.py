"""What memory there is: of this machine, or of a Ray cluster that runs already."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from lightning_core.backends.verl.settings import VerlSettings, find_device
from lightning_core.errors import BackendError, ConfigError

SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
KNOCK_SECONDS = 10.0
ASK_SECONDS = 60.0
"""How long a machine of the cluster may take to say what it has; Ray starts a process on it for that."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What one machine has, in bytes."""

    gpus: tuple[int, ...]
    """Memory of each GPU; 0 where it could not be told."""
    memory: int | None
    """Main memory; None: unknown."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The machines that a run can have."""

    machines: tuple[Machine, ...]
    source: str
    """Where they are: "this machine", "Ray at 'auto'"."""

    @property
    def count(self) -> int:
        """GPUs in all."""
        return sum(len(machine.gpus) for machine in self.machines)

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


def find_supply(settings: VerlSettings) -> Supply:
    """Of the cluster at `address`, else of this machine. Raises BackendError if there is no such cluster."""
    if settings.address is None:
        here = () if find_device() == "cpu" else _gpus_here()
        return Supply((Machine(here, main_memory()),), "this machine")
    return _ask_ray(settings.address)


def check_supply(settings: VerlSettings, supply: Supply) -> None:
    """Raise ConfigError if a cluster would be begun on this machine, which has too few GPUs for it, or where
    there are none and this kind of training needs them. Before that is done, as it takes a while."""
    if find_device() == "cpu" and settings.strategy != "fsdp2":
        raise ConfigError(
            f"strategy={settings.strategy!r} needs GPUs: on a processor verl trains with 'fsdp2' alone"
        )
    ray = sys.modules.get("ray")
    joined = settings.address is not None or (ray is not None and ray.is_initialized())
    if find_device() != "cpu" and not joined:
        check_count(settings, supply.count, "this machine has")


def check_count(settings: VerlSettings, found: int, where: str) -> None:
    """Raise ConfigError for fewer GPUs than are asked for."""
    wanted = ((settings.gpus or 1) + settings.serving_gpus) * settings.nodes
    if found < wanted:
        raise ConfigError(
            f"the verl backend needs {wanted} GPUs and {where} {found}; lower gpus, nodes or serving_gpus, "
            "join a Ray cluster that has them (address=...), or train on this machine's processor with "
            'backend="local"'
        )


def main_memory() -> int | None:
    """Main memory of this machine, no more than a container may use."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            return min(found, int(limit.read()))
    except (OSError, ValueError):  # no container, or none with a limit ("max")
        return found


def _gpus_here() -> tuple[int, ...]:
    import torch

    return tuple(
        torch.cuda.get_device_properties(place).total_memory for place in range(torch.cuda.device_count())
    )


def told_gpus() -> list[int]:
    """Bytes of each GPU, as the driver's own tool says; empty where there is no such tool. Unlike torch it
    also tells in a task of Ray's that was given no GPU."""
    try:
        told = subprocess.run(SMI, capture_output=True, text=True, check=True, timeout=ASK_SECONDS / 2)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) << 20 for line in told.stdout.split() if line.isdigit()]


def _ask_ray(address: str) -> Supply:
    import ray
    from ray.exceptions import RayError

    begun = not ray.is_initialized()
    if begun:
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise BackendError(
                f"can't reach a Ray cluster at address={address!r}: {error}; check that it runs "
                "(`ray status`), or leave the address away for one on this machine"
            ) from error
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return Supply(tuple(_machine(node, ray) for node in nodes), f"Ray at {address!r}")
    except RayError as error:
        raise BackendError(
            f"the Ray cluster at address={address!r} does not say what it has: {error}; check it with "
            "`ray status`"
        ) from error
    finally:
        if begun:
            ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError if nobody listens there: Ray itself tries for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS):
            pass


def _machine(node: dict[str, Any], ray: Any) -> Machine:
    """Ray counts GPUs and main memory; how large a GPU is only the machine itself knows."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    count = int(node["Resources"].get("GPU", 0))
    sizes: list[int] = []
    if count and find_device() != "cpu":
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ask = ray.remote(num_cpus=0, scheduling_strategy=there)(told_gpus)
        sizes = ray.get(ask.remote(), timeout=ASK_SECONDS)
    known = (sizes + [0] * count)[:count]
    memory = node["Resources"].get("memory")
    return Machine(tuple(known), int(memory) if memory else None)
