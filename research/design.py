"""The design of a study: an example, variants of its training, seeds, and the numbers of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from lightning_core.stores.base import Store
from lightning_core.trainer.summary import Summary


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train: settings of the trainer in place of the example's own."""

    name: str
    settings: Callable[[], Mapping[str, Any]] = dict
    """Made when it is needed, so that choosing a study imports no backend."""
    key: str = ""
    """Key of its folder; the name by default. Variants of different studies with the same key are one run."""
    script: str | None = None
    """A training script other than the example's."""
    arguments: tuple[str, ...] = ()
    """Further ones of the script."""
    backend: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the backend, beside the study's."""
    beside: Callable[[Path], AbstractContextManager[Any]] = nullcontext
    """Work beside each run, in its process, given its folder."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name.replace(" ", "-"))


class Extra(Protocol):
    """The row maker of a study's own table."""

    async def measure(self, store: Store, summary: Summary) -> dict[str, dict[str, float]]:
        """Its figures of one run."""


@dataclass(frozen=True, slots=True)
class Design:
    """Variants of one example's training, each trained with every seed, and what is measured."""

    name: str
    title: str
    example: str
    variants: tuple[Variant, ...]
    seeds: int = 5
    steps: int | None = 24
    """None leaves it to the script."""
    tasks: int = 100
    """Test tasks."""
    threshold: float = 0.8
    """Training reward, as the mean of five steps, that counts as learnt."""
    compared: Literal["rollouts", "seconds", "measured"] = "rollouts"
    """The number that the table gives in ratio to the first variant: rollouts or wall time to the threshold,
    or the study's own number."""
    measure: Callable[[Any, str], Any] | None = None
    """A number of its own for each run: an async function of (store, run id)."""
    measured: str = ""
    """Meaning of that number."""
    model: Callable[[], str] | None = None
    """Gives the model to start from, when a run is made; None leaves it to the script."""
    extra: Extra | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every run's backend."""

    @property
    def command(self) -> str:
        return f"python -m research.study {self.name}"

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)
