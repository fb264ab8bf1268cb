"""The outcome of a run, read from its own records."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from typing import Literal

from pydantic import Field

from lightning_core.insight.rewards import running_mean
from lightning_core.records.types import Record
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.summary import Summary
from research.design import Design

WIDTH = 5
"""Steps in the mean of training rewards."""


class Outcome(Record):
    """One run."""

    summary: Summary
    rewards: list[float] = Field(default_factory=list)
    """Mean training reward of each step that had rollouts; empty where it was not kept."""
    rollouts: list[int] = Field(default_factory=list)
    """Rollouts made until the end of each of these steps."""
    seconds: list[float] = Field(default_factory=list)
    """Wall time until the end of each of these steps, evaluations left out."""
    measured: float | None = None
    """The study's own number."""
    extra: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Numbers of the study's own table."""

    def success(self, kind: Literal["sampled", "greedy"]) -> tuple[float, float]:
        """Held-out success before and after. Raises ValueError for a run that was not evaluated."""
        before, after = self.summary.before, self.summary.after
        if before is None or after is None:
            raise ValueError(f"run {self.summary.run!r} has no evaluation before and after training")
        return getattr(before, kind), getattr(after, kind)

    def reached(self, threshold: float) -> int | None:
        """The first step whose mean of five rewards is at the threshold; None if there is none."""
        means = running_mean(self.rewards, WIDTH)
        return next((i for i, mean in enumerate(means) if i >= WIDTH - 1 and mean >= threshold), None)

    def rollouts_to(self, threshold: float) -> float:
        """Rollouts made until the threshold; infinite if it was not reached."""
        step = self.reached(threshold)
        return math.inf if step is None else self.rollouts[step]

    def seconds_to(self, threshold: float) -> float:
        """Wall time until the threshold; infinite if it was not reached."""
        step = self.reached(threshold)
        return math.inf if step is None else self.seconds[step]


class Published(Record):
    """The contents of `research/results/NAME.json`: every run of every variant, by their names."""

    variants: dict[str, dict[str, Outcome]]

    @classmethod
    def read(cls, path: Path) -> Published:
        return cls.model_validate_json(path.read_bytes())

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.model_dump_json(indent=1).replace(f"{Path.cwd()}/", "")  # paths are those in the clone
        path.write_text(text + "\n")


async def outcome_of(folder: Path, study: Design) -> Outcome:
    """Read a finished run. Raises ValueError if it was not evaluated before and after."""
    summary = Summary.model_validate_json((folder / "summary.json").read_bytes())
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        steps = [entry.values for entry in await store.list_metrics(summary.run)]
        measured = await study.measure(store, summary.run) if study.measure is not None else None
        extra = await study.extra.measure(store, summary) if study.extra is not None else {}
    totals = zip(
        steps,
        accumulate(int(values.get("rollouts", 0)) for values in steps),
        accumulate(values["step_seconds"] for values in steps),
        strict=True,
    )
    kept = [(values["reward"], made, spent) for values, made, spent in totals if "reward" in values]
    outcome = Outcome(
        summary=summary,
        rewards=[reward for reward, _, _ in kept],
        rollouts=[made for _, made, _ in kept],
        seconds=[spent for _, _, spent in kept],
        measured=measured,
        extra=extra,
    )
    outcome.success("sampled")
    return outcome
