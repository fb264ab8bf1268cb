"""The SQL agent trained in one process, in five processes over PostgreSQL, and with its rollouts on Ray.

    python -m research.places                      # three seeds of each
    python -m research.places --seeds 1 --steps 8

Where the roles are played must not change what is learnt. The whole set is written into
`README.md` and `places.json` of `research/results`; a part of it is only shown. Runs that are there already
are not made again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, TypeAdapter

from benchmarks.page import insert
from benchmarks.stores.sites import postgres
from lightning_core.trainer.summary import Summary
from research.page import PAGE, RECORDS

SCRIPT = "examples/sql/train.py"
RUNS = Path("runs/places")
SEEDS, STEPS, TASKS = 3, 24, 100
ENDING_SECONDS = 60
"""How long the other processes may take to see that the run is finished."""


class Section(BaseModel):
    """Where it stands in the page."""

    model_config = ConfigDict(frozen=True)

    name: str = "places"
    title: str = "One process, five processes, Ray"
    command: str = "python -m research.places"


def cli(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lightning_core.cli", *arguments]


@contextmanager
def here(run: str) -> Iterator[Sequence[str]]:
    """All roles in the trainer's process."""
    yield ()


@contextmanager
def apart(run: str) -> Iterator[Sequence[str]]:
    """A gateway and two workers beside the trainer, over a PostgreSQL server: five processes."""
    with postgres() as site:
        joining = ("--store", site.url, "--run", run)
        others = [
            cli("gateway", *joining),
            *(cli("worker", SCRIPT, *joining, "--set", "concurrency=16"),) * 2,
        ]
        started = [subprocess.Popen(command) for command in others]
        try:
            yield ("--store", site.url, "--set", "remote=runner,gateway")
            for process in started:
                if process.wait(ENDING_SECONDS):
                    raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        finally:
            for process in started:
                process.kill()
                process.wait()


@contextmanager
def ray(run: str) -> Iterator[Sequence[str]]:
    """Rollouts in eight workers of a Ray cluster."""
    yield ("--set", "workers=ray:8")


PLACES: Mapping[str, Callable[[str], AbstractContextManager[Sequence[str]]]] = MappingProxyType(
    {"one process": here, "five processes over PostgreSQL": apart, "rollouts on Ray": ray}
)


def make(place: str, seed: int, steps: int) -> Summary:
    """One run, unless it is there."""
    name = f"{place.replace(' ', '-')}-{steps}-seed{seed}"
    folder = RUNS / name
    if not (folder / "summary.json").exists():
        settings = ("--folder", str(folder), "--steps", str(steps), "--set", f"seed={seed}")
        held_out = ("--", "--held-out", "test", "--held-out-tasks", str(TASKS))
        with PLACES[place](name) as where:
            subprocess.run(cli("train", SCRIPT, *settings, *where, *held_out), check=True)
    return Summary.model_validate_json((folder / "summary.json").read_bytes())


def render(found: Mapping[str, Sequence[Summary]]) -> str:
    """Each place with the mean of its runs, and the runs' own figures."""
    rows = [
        "| where the roles are played | sampled, before | sampled, after | greedy, after | failed rollouts |",
        "|---|---|---|---|---|",
    ]
    for place, runs in found.items():
        before, after, greedy = (
            [getattr(getattr(run, when), kind) for run in runs] for when, kind in COLUMNS
        )
        failed = sum(run.failures for run in runs)
        rows.append(f"| {place} | {told(before)} | {told(after)} | {told(greedy)} | {failed} |")
    return "\n".join(rows)


COLUMNS = (("before", "sampled"), ("after", "sampled"), ("after", "greedy"))


def told(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.places", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS, help="updates of each run")
    parser.add_argument("--places", nargs="*", choices=list(PLACES), default=list(PLACES), metavar="PLACE")
    options = parser.parse_args()
    found: dict[str, list[Summary]] = {place: [] for place in options.places}
    for seed, place in product(range(options.seeds), options.places):
        found[place].append(make(place, seed, options.steps))
    text = render(found)
    print(text)
    if options.seeds >= SEEDS and options.steps == STEPS and options.places == list(PLACES):
        record = TypeAdapter(dict[str, list[Summary]]).dump_json(found)
        (RECORDS / "places.json").write_bytes(record + b"\n")
        PAGE.write_text(insert(PAGE.read_text(), Section(), text))


if __name__ == "__main__":
    main()
