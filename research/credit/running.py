"""Running the cells of the suite, one environment and one method each, in one process or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from lightning_core.plugins import load_plugins
from research.credit.comparing import RATES, Comparison, Outcome, compare, find_method
from research.credit.suite import SUITE
from research.credit.truth import Truth

Cell = tuple[str, str]
"""Names of an environment and of a credit method."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run for each cell."""

    algorithm: str
    seeds: int
    trials: int
    """Runs for each learning rate tried."""
    updates: int | None = None
    """None: as many as the environment's setting says."""
    rates: tuple[float, ...] = RATES


def run(
    cells: Mapping[Cell, Outcome | None], plan: Plan, processes: int = 1
) -> Iterator[tuple[Cell, Comparison]]:
    """Each cell with what came of it, as it is done; its outcome of fewer seeds goes on. A thread each: a
    network is too small for more."""
    if processes == 1:
        yield from ((cell, run_cell(cell, plan, known)) for cell, known in cells.items())
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(run_cell, cell, plan, known): cell for cell, known in cells.items()}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def run_cell(cell: Cell, plan: Plan, known: Outcome | None = None) -> Comparison:
    """One method in one environment."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        setting = SUITE[cell[0]]
        method = find_method(cell[1], load_plugins(), plan.algorithm)
        truth, updates = Truth(setting.environment), plan.updates or setting.updates
        outcome = compare(truth, method, updates, plan.seeds, plan.trials, plan.rates, known)
    finally:
        torch.set_num_threads(threads)
    return Comparison(
        optimum=truth.optimum,
        start=truth.success(truth.even),
        updates=updates,
        batch=method.batch,
        outcomes={cell[1]: outcome},
    )
