"""The three studies."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import lightning_core as lightning
from research.design import Variant
from research.offpolicy.behind import Ignored, mean_staleness
from research.studies import Study, grpo


@dataclass(frozen=True, slots=True)
class OffPolicy(Study):
    """A study of this package."""

    @property
    def command(self) -> str:
        return f"python -m research.offpolicy {self.name}"


def slow(name: str, **options: Any) -> Variant:
    """The example with a slow database, with as many rollouts at once as a batch has."""
    return Variant(
        name,
        lambda: {"algorithm": lightning.GRPO(**options), "concurrency": 64},
        key=f"slow-{name.replace(' ', '-')}",
        script="research/offpolicy/slow_tools.py",
    )


def behind(name: str, **options: Any) -> Variant:
    """GRPO on batches that are four updates old."""
    return Variant(
        name,
        grpo(staleness=4, **options),
        key=f"behind-{name.replace(' ', '-')}",
        script="research/offpolicy/behind.py",
    )


STUDIES = MappingProxyType(
    {
        study.name: study
        for study in (
            OffPolicy(
                "replay",
                "Training on recent rollouts again",
                "sql",
                (
                    Variant("on-policy", grpo(), key="grpo"),
                    Variant("replay=1", grpo(replay=1)),
                    Variant("replay=2", grpo(replay=2)),
                ),
                seeds=3,
                measure=mean_staleness,
                measured="staleness",
            ),
            OffPolicy(
                "async",
                "Rollouts that go on while the update runs, with a slow database",
                "sql",
                (slow("staleness=0"), slow("staleness=1", staleness=1)),
                seeds=3,
                compared="seconds",
                measure=mean_staleness,
                measured="staleness",
            ),
            OffPolicy(
                "staleness",
                "Batches that are four updates old",
                "sql",
                (
                    Variant("on-policy", grpo(), key="grpo"),
                    behind("truncated"),
                    behind("uncorrected", correction=Ignored()),
                ),
                seeds=3,
                measure=mean_staleness,
                measured="staleness",
            ),
        )
    }
)
