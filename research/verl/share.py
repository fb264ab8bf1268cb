"""This project's share of a step: of its wall time, and of the processor time that it takes.

Of the wall time it is what is left when vLLM has no reply to sample and verl nothing to do. Of the processor
time it is what the trainer's process spends, less the app in it: gateway, runner, store, credit, and making
batches of rollouts. Evaluations are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lightning_core.records.types import Metrics
from lightning_core.stores.base import Store
from lightning_core.trainer.summary import Summary
from research.tables import spread
from research.verl.usage import POOL

Figures = dict[str, dict[str, float]]
WALL = ("step", "backend", "collect", "update", "worker", "publish")
MAIN, NATIVE, MEASURING = "runner, trainer and app", "native threads", "this measurement"
TRAINER = "trainer: "
APART = tuple(TRAINER + part for part in ("the app", POOL, NATIVE))
"""Work of the trainer's process that is not this project's."""


class Share:
    """Measured in each run of a study of backends."""

    async def measure(self, store: Store, summary: Summary) -> Figures:
        """Means over the steps, in seconds: of the clock, of the processor, and what else the machine did."""
        steps = await store.list_metrics(summary.run)
        wall = {
            name: float(np.mean([step.values.get(f"{name}_seconds", 0.0) for step in steps])) for name in WALL
        }
        used = spent(steps, Path(summary.folder) / "usage.jsonl")
        return {"wall": wall, "processor": told_apart(used), "machine": machine(used)}

    def table(self, variants: Mapping[str, Sequence[tuple[Figures, Summary]]]) -> str:
        """A line for each backend; then, of verl's, by whom the processors were used."""
        head = "| | a step | collecting | update | publishing | others' load | failed rollouts |"
        lines = [head, f"|{'---|' * 7}"]
        for name, runs in variants.items():
            wall = [run["wall"] for run, _ in runs]
            cells = [
                f"{spread([w[part] for w in wall], 2)} s" for part in ("step", "collect", "update", "publish")
            ]
            load = spread([run["machine"]["others"] / run["wall"]["step"] for run, _ in runs], 2)
            failed = ", ".join(str(summary.failures) for _, summary in runs)
            lines.append(f"| {name} | {' | '.join(cells)} | {load} | {failed} |")
        lines += [
            "",
            "Others' load is how many processors were busy with something else meanwhile, on average.",
        ]
        return "\n".join([*lines, "", *self._shares([run for run, _ in variants.get("verl", ())])])

    def _shares(self, runs: Sequence[Figures]) -> list[str]:
        if not runs:
            return []
        idle = [100 * (1 - run["wall"]["backend"] / run["wall"]["step"]) for run in runs]
        lines = [
            f"With verl, {spread(idle, 1)} % of a step's wall time passed while vLLM had no reply to sample "
            f"and verl nothing to do. Of a step's processor time:",
            "",
            "| | seconds | share |",
            "|---|---|---|",
        ]
        totals = [sum(run["processor"].values()) for run in runs]
        parts = {part: [run["processor"].get(part, 0.0) for run in runs] for part in runs[0]["processor"]}
        for part, seconds in sorted(parts.items(), key=lambda item: -sum(item[1])):
            shares = [100 * each / total for each, total in zip(seconds, totals, strict=True)]
            lines.append(f"| {part} | {spread(seconds, 2)} | {spread(shares, 1)} % |")
        trainer, ours = (
            spread([100 * own(run, without) / total for run, total in zip(runs, totals, strict=True)], 1)
            for without in ((), APART)
        )
        return [
            *lines,
            "",
            f"The trainer's process has {trainer} % of it; {ours} % without the app and the native threads "
            "in it, which are Ray's.",
        ]


def own(run: Figures, without: Sequence[str] = APART) -> float:
    """Processor seconds of a step in the trainer's process, `without` some of what it does."""
    return sum(
        seconds
        for part, seconds in run["processor"].items()
        if part.startswith(TRAINER) and part not in without
    )


def spent(steps: Sequence[Metrics], usage: Path) -> dict[str, float]:
    """Returns the use in a mean step, by the sums' names."""
    lines = [json.loads(line) for line in usage.read_text().splitlines()]
    at = [line["at"] for line in lines]
    used = {}
    for name in lines[-1]["sums"]:
        sums = [line["sums"].get(name, 0.0) for line in lines]
        ends = np.interp([step.created_at for step in steps], at, sums)
        begins = np.interp([step.created_at - step.values["step_seconds"] for step in steps], at, sums)
        used[name] = float((ends - begins).mean())
    return used


def told_apart(used: Mapping[str, float]) -> dict[str, float]:
    """Processor seconds by who used them; the first thread's by where it was seen."""
    threads = {n.removeprefix("thread/"): v for n, v in used.items() if n.startswith("thread/")}
    native = used["process"] - sum(threads.values())
    threads.pop(MEASURING, None)
    main, app, house = threads.pop(MAIN), used.get("looks/app", 0.0), used.get("looks/house", 0.0)
    share = app / (app + house) if app + house else 0.0
    parts = {
        "the app": main * share,
        "runner and trainer": main * (1 - share),
        NATIVE: max(0.0, native),
        **threads,
    }
    return {
        **{f"{TRAINER}{name}": seconds for name, seconds in parts.items()},
        **{n.removeprefix("process/"): v for n, v in used.items() if n.startswith("process/")},
    }


def machine(used: Mapping[str, float]) -> dict[str, float]:
    """Processor seconds of everything on the machine, and of what has nothing to do with the run."""
    below = sum(seconds for name, seconds in used.items() if name.startswith("process/"))
    return {"all": used["machine"], "others": max(0.0, used["machine"] - used["process"] - below)}
