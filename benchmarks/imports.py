"""How long `import lightning_core` takes, in fresh interpreters; the goal is 0.3 s.

python -m benchmarks.imports
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

REPEATS = 11
STATEMENTS = {
    "nothing": "pass",
    "lightning_core": "import lightning_core",
    "what a script touches": "import lightning_core as l; l.Trainer, l.GRPO, l.Task",
}
TIMER = "import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"


def main() -> None:
    results = {}
    for name, statement in STATEMENTS.items():
        seconds = sorted(measure(statement) for _ in range(REPEATS))
        median = statistics.median(seconds)
        results[name] = {"median": median, "least": seconds[0], "most": seconds[-1]}
        print(f"import {name:<24} median {median:.3f} s  ({seconds[0]:.3f} to {seconds[-1]:.3f})")
    path = Path("benchmarks/results/imports.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1))


def measure(statement: str) -> float:
    """Seconds of one statement in a fresh interpreter."""
    command = [sys.executable, "-c", TIMER.format(statement=statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
