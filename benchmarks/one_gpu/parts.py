"""The parts by name, and how one writes what it finds."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers

from benchmarks.one_gpu import checks, measures, memory, steps
from benchmarks.one_gpu.models import Where
from benchmarks.one_gpu.rows import Missing, Rows
from benchmarks.one_gpu.table import SKIPPED

PARTS: Mapping[str, Callable[[Where, Rows], None]] = {
    "machine": measures.machine,
    "engine-exact": checks.engine_exact,
    "update-exact": checks.update_exact,
    "memory": memory.memory,
    "training": steps.training,
    "engine": measures.engine,
    "update": measures.update,
    "step": steps.whole_step,
    "longest": measures.longest,
}


def run_part(name: str, device: str, *, quick: bool, profile: bool, folder: Path) -> None:
    """Ends the process with status 77 for what is not installed, with 1 if a row failed."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here; --device cpu --quick tests the script itself")
    rows = Rows(folder / f"{name}.json", profile=profile)
    try:
        PARTS[name](Where(torch.device(device), quick), rows)
    except Missing as missing:
        print(missing)
        sys.exit(SKIPPED)
    sys.exit(int(rows.failed))
