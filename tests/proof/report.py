"""The proof's table: one row for each framework and shape, over all the ways it was entered."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.table import Table

from tests.proof.run import Proof, Tally

COLUMNS = (
    "rollouts",
    "calls",
    "wrong rollout",
    "wrong agent",
    "wrong call id",
    "wrong prompt",
    "missing",
    "surplus",
    "silent",
    "timed out",
)


def show(proof: Proof, seconds: float, console: Console) -> None:
    """Print the table, what failed, and the sum."""
    title = "attribution: what the store holds against what the prompts say"
    table = Table("framework", "topology", "entered by", title=title)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    shapes: defaultdict[tuple[str, str], list[Tally]] = defaultdict(list)
    for tally in proof.tallies:
        shapes[tally.play.framework, tally.play.topology].append(tally)
    for (framework, topology), tallies in shapes.items():
        ways = ", ".join(tally.play.way for tally in tallies)
        table.add_row(framework, topology, ways, *_numbers(tallies))
    table.add_section()
    table.add_row("all", "", "", *_numbers(proof.tallies))
    console.print(table)
    for error in [*proof.errors, *(said for tally in proof.tallies for said in tally.twice)]:
        console.print(error, markup=False, highlight=False)
    if proof.skipped:
        console.print(f"Not installed here: {', '.join(proof.skipped)}")
    verdict = "holds" if proof.holds else "FAILS"
    console.print(f"The proof {verdict}: {proof.most_at_once} rollouts at once, {seconds:.0f} s.")


def _numbers(tallies: list[Tally]) -> list[str]:
    names = (column.replace(" id", "").replace(" ", "_") for column in COLUMNS)
    return [f"{sum(getattr(tally, name) for tally in tallies):,}" for name in names]
