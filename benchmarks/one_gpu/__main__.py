"""Run the parts of `scripts/gpu_check` one after another, each in a process and a time slot of its own.

A part writes what it finds into FOLDER/NAME.json as it comes. One that fails or runs out of its time does not
end the rest. FOLDER/one-gpu.md is written again after each part. Ends with status 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.one_gpu.table import SKIPPED, markdown

SLOTS: Mapping[str, int] = {
    "machine": 30,
    "engine-exact": 90,
    "update-exact": 90,
    "memory": 60,
    "training": 90,
    "engine": 120,
    "update": 120,
    "step": 60,
    "longest": 60,
}
"""Parts in their order, and seconds that each may take: twelve minutes."""


class Asked(argparse.Namespace):
    """The command's options."""

    device: str
    quick: bool
    folder: Path
    only: list[str]
    seconds: float
    profile: bool
    part: str | None


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="a device of torch (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="little work, on the shipped model")
    parser.add_argument("--folder", type=Path, default=Path("runs/one-gpu"), help="where results go")
    parser.add_argument("--only", nargs="+", choices=[*SLOTS], default=[*SLOTS], help="these parts")
    parser.add_argument("--seconds", type=float, default=720, help="all parts together (default: 720)")
    parser.add_argument("--profile", action="store_true", help="list the kernels that take most time")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args(namespace=Asked())
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.part:
        from benchmarks.one_gpu.parts import run_part

        run_part(asked.part, asked.device, quick=asked.quick, profile=asked.profile, folder=asked.folder)
        return 0
    started = time.monotonic()
    statuses: dict[str, Any] = {}
    for name in asked.only:
        left = asked.seconds - (time.monotonic() - started)
        statuses[name] = run(name, asked, left if asked.quick else min(SLOTS[name], left))
        print(f"{name}: {statuses[name]['status']} after {statuses[name]['seconds']} s", flush=True)
        (asked.folder / "parts.json").write_text(json.dumps(statuses, indent=1) + "\n")
        (asked.folder / "one-gpu.md").write_text(markdown(asked.folder))
    print((asked.folder / "one-gpu.md").read_text())
    return int(any(each["status"] not in ("done", "skipped") for each in statuses.values()))


def run(name: str, asked: Asked, seconds: float) -> dict[str, Any]:
    """One part, in a process group of its own, of which nothing is left when this returns."""
    if seconds <= 1:
        return {"status": "no time left", "seconds": 0}
    command = [sys.executable, "-m", "benchmarks.one_gpu", "--part", name, "--device", asked.device]
    command += ["--folder", str(asked.folder), *(["--quick"] if asked.quick else [])]
    command += ["--profile"] if asked.profile else []
    log, started = asked.folder / f"{name}.log", time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=seconds)
            status = "done" if code == 0 else "skipped" if code == SKIPPED else f"failed with status {code}"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_text(errors="replace").strip().splitlines()
    taken = round(time.monotonic() - started, 1)
    return {"status": status, "seconds": taken, **({} if status == "done" else {"said": said[-12:]})}


if __name__ == "__main__":
    sys.exit(main())
