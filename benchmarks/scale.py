"""Many long rollouts at once, and a trainer's reading of them: `python -m benchmarks.scale [--rollouts 100]`.

Each rollout is a conversation as in `benchmarks.served`: 60 turns of 450 new words and a reply of 200 tokens,
some 110,000 tokens at last. All go on at once, by one gateway before `benchmarks.vllm_standin`, into one
SQLite file. Then a process of its own does what a trainer does with the batch: it reads all calls, makes
trajectories of them, and packs these for an update. docs/scale.md says what follows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gateway import Server, running_server
from benchmarks.gateway_server import ROLLOUTS
from benchmarks.served import NEW_WORDS, SYLLABLES, TURNS, Connection, standin
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.experience.trajectories import make_packs
from lightning_core.experience.transitions import to_trajectory
from lightning_core.plugins import load_plugins
from lightning_core.trainer.parts import open_store

RESULT = Path("benchmarks/results/scale.json")
MIB = 1 << 20


async def talk(server: Server, number: int, took: list[float]) -> None:
    """One rollout; `took` gets the seconds of each call."""
    words = random.Random(number)
    connection = await Connection(server, number).open()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You work in a shell."}]
    for _ in range(TURNS):
        new = " ".join("".join(words.choices(SYLLABLES, k=3)) for _ in range(NEW_WORDS))
        messages.append({"role": "user", "content": new})
        began = time.perf_counter()
        reply = json.loads(await connection.ask({"model": "m", "messages": messages}))
        took.append(time.perf_counter() - began)
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
    connection.close()


def peak_memory(pid: int) -> int:
    """The most bytes a process of this machine has had in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def play(rollouts: int, url: str) -> dict[str, float]:
    """All rollouts at once."""
    took: list[float] = []
    with standin("interval") as address, running_server(url, address) as server:
        began, cpu = time.perf_counter(), server.cpu_seconds()
        await asyncio.gather(*(talk(server, number, took) for number in range(rollouts)))
        seconds, cpu = time.perf_counter() - began, server.cpu_seconds() - cpu
        cuts = statistics.quantiles(took, n=100)
        return {
            "calls": len(took),
            "seconds of all": seconds,
            "gateway, CPU ms a call": cpu * 1e3 / len(took),
            "call, p50 s": cuts[49],
            "call, p99 s": cuts[98],
            "gateway, MiB at most": peak_memory(server.pid) / MIB,
        }


async def read(rollouts: int, url: str) -> dict[str, float]:
    """Do what a trainer does with the batch before its update."""
    ids = [each.id for each in ROLLOUTS[:rollouts]]
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    async with open_store(url, load_plugins()) as store:
        calls = await store.get_calls(ids)
    read_at = time.process_time()
    rewarded = [each.model_copy(update={"reward": number}) for number, each in enumerate(ROLLOUTS[:rollouts])]
    made = [to_trajectory(each, calls[each.id], []) for each in rewarded]
    trajectories = tuple(
        replace(each, transitions=tuple(replace(t, trained=True, advantage=1.0) for t in each.transitions))
        for each in made
    )
    made_at = time.process_time()
    algorithm = GRPO()
    packs = make_packs(
        trajectories,
        algorithm.weigh(trajectories),
        pack_tokens=1 << 17,
        units=algorithm.units(trajectories),
    )
    ended = time.process_time()
    return {
        "read, CPU s": read_at - began,
        "trajectories, CPU s": made_at - read_at,
        "packs, CPU s": ended - made_at,
        "trainer, MiB more": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "prompt tokens": sum(len(t.prompt_ids) for each in trajectories for t in each.transitions),
        "tokens of the passes": sum(len(pack.tokens) for pack in packs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rollouts", type=int, default=100, help=f"{len(ROLLOUTS)} at most (default: 100)")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(asyncio.run(read(options.rollouts, options.read))))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        found = asyncio.run(play(options.rollouts, url))
        disk = sum(file.stat().st_size for file in Path(folder).iterdir())
        found["disk, MiB a rollout"] = disk / MIB / options.rollouts
        command = [
            sys.executable,
            "-m",
            "benchmarks.scale",
            "--rollouts",
            str(options.rollouts),
            "--read",
            url,
        ]
        found |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    table = Table(f"{options.rollouts} rollouts at once, {TURNS} turns each", "")
    for name, value in found.items():
        table.add_row(name, f"{value:,.0f}" if value >= 1000 else f"{value:.2f}")
    Console().print(table)
    RESULT.write_text(json.dumps({"rollouts": options.rollouts, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
