"""The studies: what is compared, on which example, and over how many seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import lightning_core as lightning


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train: settings of the trainer in place of the example's own."""

    name: str
    settings: Callable[[], Mapping[str, Any]] = dict
    """Made when it is needed, so that choosing a study imports no backend."""
    key: str = ""
    """Of its folder; the name by default. Variants of different studies with the same key are one run."""
    script: str | None = None
    """A training script other than the example's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name.replace(" ", "-"))


@dataclass(frozen=True, slots=True)
class Study:
    """Variants of one example's training."""

    name: str
    title: str
    example: str
    variants: tuple[Variant, ...]
    seeds: int = 5
    steps: int = 24
    tasks: int = 100
    """Test tasks."""
    threshold: float = 0.8
    """Training reward, as the mean of five steps, that counts as learnt."""
    measure: Callable[[Any, str], Any] | None = None
    """A number of its own for each run: an async function of (store, run id)."""
    measured: str = ""
    """What that number is."""

    @property
    def command(self) -> str:
        return f"python -m benchmarks.study {self.name}"

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)


def grpo(**options: Any) -> Callable[[], Mapping[str, Any]]:
    """GRPO with these options."""
    return lambda: {"algorithm": lightning.GRPO(**options)}


STUDIES = MappingProxyType(
    {
        study.name: study
        for study in (
            Study(
                "credit-sql",
                "Credit methods on the SQL agent",
                "sql",
                (
                    Variant("uniform", grpo(credit="uniform")),
                    Variant("per_agent", grpo(credit="per_agent"), key="grpo"),
                ),
            ),
        )
    }
)
