"""The time to import `lightning_core`, and the CPU time of short commands, in fresh interpreters.

python -m benchmarks.imports

The goals: 0.3 s for an import, and 0.25 s of CPU for `agentlightning --help`. Commands take turns, so that
another load on the machine falls on all of them alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

REPEATS = 11
STATEMENTS = {
    "nothing": "pass",
    "lightning_core": "import lightning_core",
    "what a script touches": "import lightning_core as l; l.Trainer, l.GRPO, l.Task",
}
TIMER = "import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
COMMAND = ("-m", "lightning_core.cli")
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "agentlightning --help": (*COMMAND, "--help"),
    "agentlightning runs": (*COMMAND, "runs", "/nonexistent"),
    "agentlightning models --help": (*COMMAND, "models", "--help"),
}


def main() -> None:
    results = measure_in_turns({name: partial(import_seconds, each) for name, each in STATEMENTS.items()})
    for name, row in results.items():
        print(f"import {name:<30} median {show(row)}")
    commands = measure_in_turns({name: partial(cpu_seconds, each) for name, each in COMMANDS.items()})
    for name, row in commands.items():
        print(f"CPU of {name:<30} median {show(row)}")
    path = Path("benchmarks/results/imports.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results | commands, indent=1))


def measure_in_turns(measures: Mapping[str, Callable[[], float]]) -> dict[str, dict[str, float]]:
    """Median, least and most seconds of each, measured one after the other, again and again."""
    rounds = [[measure() for measure in measures.values()] for _ in range(REPEATS)]
    return {
        name: {"median": statistics.median(times), "least": min(times), "most": max(times)}
        for name, times in zip(measures, zip(*rounds, strict=True), strict=True)
    }


def show(row: Mapping[str, float]) -> str:
    """One row in words."""
    return f"{row['median']:.3f} s  ({row['least']:.3f} to {row['most']:.3f})"


def import_seconds(statement: str) -> float:
    """Seconds of one statement in a fresh interpreter."""
    command = [sys.executable, "-c", TIMER.format(statement=statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cpu_seconds(arguments: tuple[str, ...]) -> float:
    """CPU seconds, user and system, of a fresh interpreter with those arguments."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


if __name__ == "__main__":
    main()
