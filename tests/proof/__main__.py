"""Run the proof and print its table: `python -m tests.proof`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.proof.report import show
from tests.proof.run import prove


def main() -> None:
    """Exit with 1 if a call is wrong or missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="at least so many (default: 10,000)")
    parser.add_argument("--rollouts", type=int, default=200, help="at least so many at once (default: 200)")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # CrewAI and LiteLLM read this when they are imported: send nothing home, keep files here.
        os.environ |= {
            "CREWAI_DISABLE_TELEMETRY": "true",
            "CREWAI_TRACING_ENABLED": "false",
            "CREWAI_STORAGE_DIR": folder,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        # It says before each call that it estimates the length of the prompt.
        logging.getLogger("crewai").setLevel(logging.ERROR)
        proof = asyncio.run(prove(Path(folder), calls=options.calls, rollouts=options.rollouts))
    show(proof, time.perf_counter() - began, Console(width=160))
    sys.exit(0 if proof.holds else 1)


if __name__ == "__main__":
    main()
