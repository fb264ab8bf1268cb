"""Hand-made histories for rules to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning_core.alerts.watch import Rule, Scene
from lightning_core.records.types import Metrics


def history(**series: Sequence[float | None]) -> list[Metrics]:
    """A step for each place of the series; None where a step does not have the number."""
    lengths = {len(values) for values in series.values()}
    (length,) = lengths
    return [
        Metrics(
            run_id="r",
            step=step,
            values={
                n.replace("__", "/"): v for n, values in series.items() if (v := values[step]) is not None
            },
        )
        for step in range(length)
    ]


def found(rule: Rule, steps: Iterable[Metrics] = (), **scene: object) -> list[str]:
    """The messages of a rule."""
    return [each.message for each in rule(Scene(history=list(steps), **scene))]  # type: ignore[arg-type]


def first_found(rule: Rule, steps: Sequence[Metrics]) -> int | None:
    """The first step after which a rule finds something."""
    return next((end - 1 for end in range(1, len(steps) + 1) if found(rule, steps[:end])), None)
