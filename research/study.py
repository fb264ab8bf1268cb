"""Studies: one example trained in several ways from the same start, over several seeds, side by side.

    python -m research.study algorithms            # GRPO and its kin on the SQL agent
    python -m research.study air --seeds 5

Each variant replaces settings of the trainer in the example's own script and nothing else. Every run is
evaluated on the test split before and after. A whole study is written into `README.md` of
`research/results`, with `results-NAME.png` and `NAME.json` beside it; a part of one is only shown.
Runs that are there already are not made again; one that was stopped is resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.page import insert
from lightning_core.cli.training import train_script
from lightning_core.trainer.launch import Launch
from research.design import Variant
from research.outcomes import Outcome, Published, outcome_of
from research.page import PAGE, RECORDS
from research.plots import plot
from research.studies import STUDIES, Study

RUNS = Path("runs/studies")


def main(studies: Mapping[str, Study] = STUDIES, module: str = "research.study") -> None:
    """Make the studies named on the command line; `module` is what was started with `python -m`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("studies", nargs="*", metavar="NAME", help=f"of {', '.join(studies)}; or all")
    parser.add_argument("--seeds", type=int, help="training seeds for each variant (default: the study's)")
    parser.add_argument("--steps", type=int, help="updates of each run (default: the study's)")
    parser.add_argument("--tasks", type=int, help="test tasks (default: the study's)")
    parser.add_argument("--variants", nargs="*", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for unknown in sorted(set(options.studies) - set(studies)):
        parser.error(f"there is no study {unknown!r}; there are {', '.join(studies)}")
    for name in options.studies or studies:
        whole = studies[name]
        study = replace(whole, steps=options.steps or whole.steps, tasks=options.tasks or whole.tasks)
        names = options.variants or study.names
        for unknown in sorted(set(names) - set(study.names)):
            parser.error(f"study {name!r} has no variant {unknown!r}; it has {', '.join(study.names)}")
        if options.one:
            variant, seed = options.one
            train(study, study.variant(variant), int(seed))
        else:
            seeds = options.seeds or study.seeds
            complete = names == study.names and seeds >= study.seeds and study == whole
            make(study, [study.variant(each) for each in names], seeds, module, whole=complete)


def make(study: Study, variants: Sequence[Variant], seeds: int, module: str, *, whole: bool) -> None:
    """All runs of a study, and its table; published only if it is whole."""
    # variants side by side in time, so that a busy hour hits all of them alike
    for seed, variant in product(range(seeds), variants):
        make_run(study, variant, seed, module)
    outcomes = read(study, variants, seeds)
    if whole:
        publish(study, outcomes)
    print(study.render(outcomes))


def folder_of(study: Study, variant: Variant, seed: int) -> Path:
    """Where a run lies; runs that mean the same are made once for all studies of an example."""
    steps = "" if study.steps is None else f"-{study.steps}"
    return RUNS / study.example / f"{variant.key}{steps}-seed{seed}"


def make_run(study: Study, variant: Variant, seed: int, module: str) -> None:
    """One run in a process of its own, unless its summary is there already."""
    if (folder_of(study, variant, seed) / "summary.json").exists():
        return
    command = [sys.executable, "-m", module, study.name, "--tasks", str(study.tasks)]
    command += ["--steps", str(study.steps)] if study.steps is not None else []
    one_core = {"OMP_NUM_THREADS": "1"} if study.backend else {}
    environment = {**os.environ, **one_core}
    subprocess.run([*command, "--one", variant.name, str(seed)], check=True, env=environment)


def train(study: Study, variant: Variant, seed: int) -> None:
    """Run the example's own script with the variant's settings in place of its trainer's."""
    folder = folder_of(study, variant, seed)
    settings: dict[str, Any] = {"seed": seed, "folder": str(folder)}
    settings |= {"steps": study.steps} if study.steps is not None else {}
    settings |= {"model": study.model()} if study.model is not None else {}
    held_out = ["--held-out", "test", "--held-out-tasks", str(study.tasks)]
    script = Path(variant.script or f"examples/{study.example}/train.py")
    settings |= {"resume": (folder / "run.json").exists(), **variant.settings()}
    with variant.beside(folder):
        train_script(
            script, [*held_out, *variant.arguments], Launch(settings, {**study.backend, **variant.backend})
        )


def read(study: Study, variants: Sequence[Variant], seeds: int) -> dict[str, dict[str, Outcome]]:
    """Returns the outcomes of the runs, from their own records, by variant and name."""
    return {
        variant.name: {
            f"seed{seed}": asyncio.run(outcome_of(folder_of(study, variant, seed), study))
            for seed in range(seeds)
        }
        for variant in variants
    }


def publish(study: Study, outcomes: Mapping[str, Mapping[str, Outcome]]) -> None:
    """Write the study's JSON, tables and plot."""
    published = Published(variants={name: dict(runs) for name, runs in outcomes.items()})
    published.write(RECORDS / f"{study.name}.json")
    PAGE.write_text(insert(PAGE.read_text(), study, study.render(outcomes)))
    plot(study, outcomes, PAGE.with_name(f"results-{study.name}.png"))


if __name__ == "__main__":
    main()
