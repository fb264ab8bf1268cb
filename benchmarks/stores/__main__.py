"""Measure stores and rollouts, and publish the figures in benchmarks/results/README.md.

python -m benchmarks.stores                         # everything, half an hour
python -m benchmarks.stores operations empty        # these parts
python -m benchmarks.stores sizes --stores sqlite   # of this store
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.page import PAGE, insert
from benchmarks.stores.plot import plot
from benchmarks.stores.record import PATH, Record
from benchmarks.stores.run import PARTS, Amount, find_peer, run
from benchmarks.stores.sites import SITES
from benchmarks.stores.tables import render

PLOT = Path("benchmarks/results/results-stores.png")


class Stores:
    """The section of the page."""

    name = "stores"
    title = "Stores and rollouts"
    command = "python -m benchmarks.stores"


def publish(record: Record) -> None:
    """Write tables and plot."""
    PAGE.write_text(insert(PAGE.read_text(), Stores(), render(record)))
    if record.sizes:
        plot(record, PLOT)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stores")
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="part", help=", ".join(PARTS))
    parser.add_argument("--stores", nargs="+", choices=SITES, default=list(SITES))
    parser.add_argument("--rounds", type=int, default=Amount().rounds)
    parser.add_argument("--no-peer", action="store_true", help="leave the peer out")
    asked = parser.parse_args(arguments)
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    other = None if asked.no_peer else find_peer()
    record = run(PATH, replace(Amount(), rounds=asked.rounds), asked.parts, asked.stores, other)
    publish(record)
    print(render(record))


if __name__ == "__main__":
    main()
