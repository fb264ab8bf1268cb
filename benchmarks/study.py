"""Studies: one example trained in several ways from the same start, over several seeds, side by side.

    python -m benchmarks.study algorithms            # GRPO and its kin on the SQL agent
    python -m benchmarks.study air --seeds 5

Each variant replaces settings of the trainer in the example's own script and nothing else. A whole study is
written into `docs/results.md`, with `docs/results-NAME.png` and `benchmarks/results/NAME.json`; a part
of one is only shown. Runs that are there already are not made again; one that was stopped is gone on with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.outcomes import Outcome, outcome_of, plot_outcomes, study_table
from benchmarks.results import PAGE, RECORDS, insert
from benchmarks.studies import STUDIES, Study, Variant
from lightning_core.cli.training import train_script

RUNS = Path("runs/studies")


def main(studies: Mapping[str, Study] = STUDIES, module: str = "benchmarks.study") -> None:
    """Make the studies named on the command line; `module` is what was started with `python -m`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("studies", nargs="*", metavar="study", help=f"of {', '.join(studies)}; or all")
    parser.add_argument("--seeds", type=int, help="training seeds for each variant (default: the study's)")
    parser.add_argument("--steps", type=int, help="updates of each run (default: the study's)")
    parser.add_argument("--variants", nargs="*", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for unknown in sorted(set(options.studies) - set(studies)):
        parser.error(f"there is no study {unknown!r}; there are {', '.join(studies)}")
    for name in options.studies or studies:
        study = replace(studies[name], steps=options.steps or studies[name].steps)
        if options.one:
            train(study, study.variant(options.one[0]), int(options.one[1]))
        else:
            seeds = options.seeds or study.seeds
            make(study, options.variants or study.names, seeds, module, whole=study == studies[name])


def make(study: Study, names: Sequence[str], seeds: int, module: str, *, whole: bool) -> None:
    """All runs of a study, and its table; published only if it is whole."""
    chosen = [study.variant(name) for name in names]
    for seed in range(seeds):  # variants side by side in time, so that a busy hour hits all of them alike
        for variant in chosen:
            make_run(study, variant, seed, module)
    outcomes = read(study, chosen, seeds)
    if len(chosen) == len(study.variants) and seeds >= study.seeds and whole:
        publish(study, outcomes)
    else:
        print(study_table(study, outcomes))


def folder_of(study: Study, variant: Variant, seed: int) -> Path:
    """Where a run lies; runs that mean the same are made once for all studies of an example."""
    return RUNS / study.example / f"{variant.key}-{study.steps}-seed{seed}"


def make_run(study: Study, variant: Variant, seed: int, module: str) -> None:
    """One run in a process of its own, unless its summary is there already."""
    if not (folder_of(study, variant, seed) / "summary.json").exists():
        command = [sys.executable, "-m", module, study.name, "--steps", str(study.steps)]
        subprocess.run([*command, "--one", variant.name, str(seed)], check=True)


def train(study: Study, variant: Variant, seed: int) -> None:
    """Run the example's own script with the variant's settings in place of its trainer's."""
    folder = folder_of(study, variant, seed)
    settings = {"steps": study.steps, "seed": seed, "folder": str(folder), **variant.settings()}
    held_out = ["--held-out", "test", "--held-out-tasks", str(study.tasks)]
    script = Path(variant.script or f"examples/{study.example}/train.py")
    train_script(script, held_out, settings, resume=(folder / "run.json").exists())


def read(study: Study, variants: list[Variant], seeds: int) -> dict[str, list[Outcome]]:
    """What the runs came to, from their own records, by variant."""
    return {
        variant.name: [
            asyncio.run(outcome_of(folder_of(study, variant, seed), study)) for seed in range(seeds)
        ]
        for variant in variants
    }


def publish(study: Study, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    """Write the study's JSON, table and plot."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    record = {name: [o.model_dump(mode="json") for o in runs] for name, runs in outcomes.items()}
    (RECORDS / f"{study.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    text = study_table(study, outcomes)
    PAGE.write_text(insert(PAGE.read_text(), study, text))
    plot_outcomes(study, outcomes, PAGE.with_name(f"results-{study.name}.png"))
    print(text)


if __name__ == "__main__":
    main()
