"""The record of what was found, and the page and the plot that are made of it and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.intervals import Interval
from benchmarks.page import insert
from research.credit.comparing import PUBLISHED, Comparison, Outcome
from research.credit.running import Cell
from research.credit.suite import SUITE
from research.credit.tables import cost_table, page_of
from research.page import RECORDS

RECORD = RECORDS / "credit.json"


class Section(BaseModel):
    """Where it stands in the page."""

    model_config = ConfigDict(frozen=True)

    name: str = "credit"
    title: str = "Credit methods, where the truth is known"
    command: str = "python -m research.credit"


class Record(BaseModel):
    """All comparisons, by environment."""

    model_config = ConfigDict(frozen=True)

    comparisons: dict[str, Comparison] = {}
    costs: dict[str, dict[str, Interval]] = {}
    """Costs of each method's gradient, in ratio to the base's, by environment."""

    def with_outcome(self, cell: Cell, found: Comparison) -> Record:
        """With one more outcome. Outcomes of that environment under other settings are dropped."""
        before = self.comparisons.get(cell[0])
        kept = {}
        if before is not None and before.model_copy(update={"outcomes": found.outcomes}) == found:
            kept = before.outcomes
        merged = found.model_copy(update={"outcomes": {**kept, **found.outcomes}})
        comparisons = {**self.comparisons, cell[0]: merged}
        ordered = {name: comparisons[name] for name in SUITE if name in comparisons}
        return self.model_copy(update={"comparisons": ordered})

    def with_costs(self, environment: str, found: Mapping[str, Interval]) -> Record:
        """With the costs of these methods in an environment."""
        costs = {**self.costs, environment: {**self.costs.get(environment, {}), **found}}
        ordered = {name: costs[name] for name in SUITE if name in costs}
        return self.model_copy(update={"costs": ordered})

    def outcome(self, cell: Cell) -> Outcome | None:
        """Returns the cell's outcome; None if it was not run."""
        comparison = self.comparisons.get(cell[0])
        return None if comparison is None else comparison.outcomes.get(cell[1])

    @property
    def methods(self) -> list[str]:
        """Returns the methods that have an outcome anywhere; the base first."""
        found = {method for comparison in self.comparisons.values() for method in comparison.outcomes}
        return sorted(found, key=lambda name: (name != PUBLISHED, name))


def read(path: Path) -> Record:
    """The record as it was left; empty if there is none."""
    return Record.model_validate_json(path.read_bytes()) if path.exists() else Record()


def write(record: Record, path: Path, page: Path) -> None:
    """The record, the tables in the page, and the plot beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.model_dump_json() + "\n")
    page.write_text(insert(page.read_text(), Section(), render(record)))
    plot(record, page.with_name("results-credit.png"))


def render(record: Record) -> str:
    """The tables of a record."""
    learning = page_of(record.comparisons, record.methods)
    return f"{cost_table(record.costs)}\n\n{learning}" if record.costs else learning


def plot(record: Record, path: Path) -> None:
    """Median success over the rollouts, for each environment and method."""
    from matplotlib.figure import Figure

    columns = 3
    rows = -(-len(record.comparisons) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for place, (name, comparison) in zip(axes, record.comparisons.items(), strict=False):
        for number, method in enumerate(record.methods):
            if (outcome := comparison.outcomes.get(method)) is not None:
                rollouts = [step * comparison.batch for step in range(len(outcome.curve))]
                style = {"color": "black", "linewidth": 2} if method == PUBLISHED else {"color": f"C{number}"}
                place.plot(rollouts, outcome.curve, label=method, **style)
        place.set(title=name, ylim=(0, 1.02), xlabel="rollouts", ylabel="success")
        place.grid(alpha=0.3)
    for place in axes:
        place.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=100)
