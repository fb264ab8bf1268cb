"""Credit methods where the truth is known: rollouts to a threshold and final success, over several seeds.

    python -m research.credit                            # the default and others in every environment
    python -m research.credit --methods uniform state --environments chain team
    python -m research.credit --missing                  # go on where an earlier one ended
    python -m research.credit --missing --seeds 60       # more seeds, at the rates that were found
    python -m research.credit --quick                    # a few updates, to see that it runs

Each method is given its own best learning rate, found on other seeds. Writes the tables and a plot into
`research/results/README.md` and `research/results/credit.json`; what is not run again stays as it was.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from lightning_core.plugins import load_plugins
from research.credit.comparing import EXACT, PUBLISHED, Outcome
from research.credit.publishing import RECORD, read, write
from research.credit.running import Cell, Plan, run
from research.credit.suite import SUITE
from research.page import PAGE


def main(arguments: list[str] | None = None) -> None:
    plugins = load_plugins()
    methods = sorted(plugins.names("credit"))
    parser = argparse.ArgumentParser(prog="python -m research.credit", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="runs that are reported")
    parser.add_argument("--trials", type=int, default=40, help="runs for each learning rate tried")
    parser.add_argument(
        "--methods",
        nargs="*",
        default=[PUBLISHED, "uniform", "relevance", EXACT],
        metavar="NAME",
        help=f"of {', '.join(methods)}; {PUBLISHED}: GRPO as its paper has it; {EXACT}: the true gradient "
        f"(default: {PUBLISHED}, uniform, relevance, {EXACT})",
    )
    parser.add_argument(
        "--environments", nargs="*", default=[""], metavar="TEXT", help="what their names hold"
    )
    parser.add_argument("--algorithm", choices=("grpo", "rloo"), default="grpo")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--missing", action="store_true", help="only what the record lacks, new seeds too")
    parser.add_argument("--quick", action="store_true", help="two seeds of five updates at one rate")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    chosen = [name for name in SUITE if any(text in name for text in options.environments)]
    if not chosen:
        parser.error(f"no environment is called so; there are: {'; '.join(SUITE)}")
    plan = Plan(options.algorithm, options.seeds, options.trials)
    if options.quick:
        plan = Plan(options.algorithm, 2, 1, updates=5, rates=(0.04,))
    record = read(options.record)
    cells: dict[Cell, Outcome | None] = dict.fromkeys(product(chosen, options.methods))
    if options.missing:
        before = {cell: record.outcome(cell) for cell in cells}
        cells = {cell: one for cell, one in before.items() if one is None or len(one.rollouts) < plan.seeds}
    for cell, comparison in run(cells, plan, options.processes):
        record = record.with_outcome(cell, comparison)
        write(record, options.record, options.page)


if __name__ == "__main__":
    main()
