"""Run a command with verl and vLLM on this machine's processor: `python tests/verl/cpu.py agentlightning …`.

It sets what `cpu_platform` needs and what keeps two workers and two servers on a few cores, and then becomes
that command. What is set already stays.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = {
    "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def environment(before: dict[str, str]) -> dict[str, str]:
    """`before`, with what a CPU needs."""
    path = os.pathsep.join([str(HERE), *filter(None, [before.get("PYTHONPATH")])])
    bin_folder = os.pathsep.join([str(Path(sys.executable).parent), before.get("PATH", os.defpath)])
    return {**SETTINGS, **before, "PYTHONPATH": path, "PATH": bin_folder}


def main(command: list[str]) -> None:
    if not command:
        raise SystemExit(__doc__)
    env = environment(dict(os.environ))
    program = shutil.which(command[0], path=env["PATH"])
    if program is None:
        raise SystemExit(f"there is no program {command[0]!r}")
    os.execve(program, [program, *command[1:]], env)


if __name__ == "__main__":
    main(sys.argv[1:])
