"""The backend's contract: an engine that serves the policy and an optimizer that improves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightning_core.algorithms.base import Algorithm
from lightning_core.gateway.upstream import Upstream
from lightning_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update is made from."""

    step: int
    trajectories: tuple[Trajectory, ...]
    """Only transitions that are trained and have an advantage carry loss."""


class Backend(Protocol):
    """Serves the policy, takes a batch, publishes new weights."""

    name: str
    model: str
    """The folder or name of the model it starts from."""
    policy_version: int

    @property
    def upstream(self) -> Upstream:
        """The engine, once started."""

    def check(self, algorithm: Algorithm) -> None:
        """Raise UnsupportedError, by name, for anything in the algorithm this backend can't do."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """Improve the weights under training by one batch; requests are answered by the published ones
        meanwhile. Returns metrics.

        Raises TrainingError, with the weights as they were, if the gradient is not finite.
        """

    async def publish(self) -> int:
        """Let the engine answer with the updated weights; returns the new policy version.

        Requests under way are answered to their end by the version they began with; those that come before
        the weights have changed are held, not refused.
        """

    async def save(self, folder: Path) -> None:
        """Write weights (as a transformers folder), optimizer state and version; atomic: the folder
        appears whole or not at all."""

    async def export(self, folder: Path) -> None:
        """Write the policy as it serves, as a plain transformers folder (LoRA merged into the weights)."""

    async def load(self, folder: Path) -> None:
        """Go on from a folder written by `save`."""
