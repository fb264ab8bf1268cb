"""The plot results-stores.png: CPU of an operation over the number of rollouts in the store."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stores.record import Record
from benchmarks.stores.tables import NAMES


def plot(record: Record, path: Path) -> None:
    """A panel for each operation, a line for each store, in a band from its least repeat to its greatest."""
    from matplotlib.figure import Figure

    operations = list(next(iter(next(iter(record.sizes.values())).values()))[0])
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).flatten()
    for panel, name in zip(panels, operations, strict=True):
        for number, (store, by_size) in enumerate(record.sizes.items()):
            values = [sorted(costs[name].cpu_ms for costs in repeats) for repeats in by_size.values()]
            middle = [one[len(one) // 2] for one in values]
            panel.plot(list(by_size), middle, "o-", color=f"C{number}", label=NAMES[store])
            low, high = [one[0] for one in values], [one[-1] for one in values]
            panel.fill_between(list(by_size), low, high, color=f"C{number}", alpha=0.12, linewidth=0)
        panel.set(xscale="log", title=name, ylabel="CPU ms, caller and server")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for panel in panels[2:]:
        panel.set_xlabel("rollouts in the store")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(NAMES))
    figure.savefig(path, dpi=120)
