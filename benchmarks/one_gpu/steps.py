"""Whole runs: training that is killed and resumed, and what a step of an agent takes."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx

import lightning_core as lightning
from benchmarks.one_gpu.models import SHIPPED, Where, random_network
from benchmarks.one_gpu.rows import Missing, Rows
from lightning_core.backends.weights.sources import load_tokenizer
from lightning_core.records.types import Metrics, Run
from lightning_core.stores.sqlite import SqliteStore

CALC = Path(__file__).parents[2] / "examples" / "calc" / "policy"
STEPS, KILL_AFTER = 5, 2


def training(where: Where, rows: Rows) -> None:
    """Train the shipped model with an app of plain HTTP, kill the process without notice, and resume."""
    rows.title("Training, killed and resumed")
    with tempfile.TemporaryDirectory() as name, rows.row(model=SHIPPED) as row:
        folder, started = Path(name) / "run", time.perf_counter()
        process = subprocess.Popen(command(folder, where), start_new_session=True)
        try:
            while steps_made(folder) < KILL_AFTER:
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended by itself, with status {process.returncode}")
                time.sleep(0.02)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        row["killed after step"] = steps_made(folder)
        subprocess.run(command(folder, where), check=True)
        run, metrics = asyncio.run(read(folder))
        row |= {"status": run.status, "steps": len(metrics), "seconds": time.perf_counter() - started}
        gaps = [each.values["logprob_gap_mean"] for each in metrics if "logprob_gap_mean" in each.values]
        row["updates"], row["nats between engine and update"] = len(gaps), max(gaps, default=0.0)
        if (run.status, len(metrics), len(gaps)) != ("finished", STEPS, STEPS):
            raise AssertionError(f"the resumed run is {run.status!r} after {len(gaps)} updates")


def command(folder: Path, where: Where) -> list[str]:
    module = "benchmarks.one_gpu.steps"
    return [sys.executable, "-m", module, "--folder", str(folder), "--device", str(where.device)]


def steps_made(folder: Path) -> int:
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")), default=0)


async def read(folder: Path) -> tuple[Run, list[Metrics]]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        return run, list(await store.list_metrics(run.id))


async def ask(task: lightning.Task) -> float:
    """Two calls of an app that speaks plain HTTP; the reward is random, so that each group is trained."""
    text, where = str(task.input["question"]), lightning.environment(agent="writer")
    async with httpx.AsyncClient(base_url=where["OPENAI_BASE_URL"], timeout=120) as client:
        for _ in range(2):
            reply = await client.post(
                "/chat/completions",
                headers={"Authorization": f"Bearer {where['OPENAI_API_KEY']}"},
                json={
                    "model": "policy",
                    "messages": [{"role": "user", "content": text}],
                    "max_completion_tokens": 24,
                },
            )
            text = str(reply.raise_for_status().json()["choices"][0]["message"]["content"])
    return random.random()


def train(folder: Path, device: str) -> None:
    trainer = lightning.Trainer(
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=4, tasks_per_step=2),
        backend=lightning.LocalBackend(SHIPPED, device=device),
        checkpoint_every=1,
        steps=STEPS,
        folder=folder,
        resume=(folder / "run.json").exists(),
        progress=False,
    )
    trainer.fit(ask, train=[{"question": f"List the boats with speed above {n}."} for n in range(7)])


# a whole step ---------------------------------------------------------------------------------
def whole_step(where: Where, rows: Rows) -> None:
    """Collect, update and publish, for the calculator agent of examples/calc; the rewards are random, so that
    each group is trained."""
    rows.title("A step of the calculator agent, 64 rollouts: seconds (median)")
    for module in ("autogen_agentchat", "autogen_ext", "openai"):
        if importlib.util.find_spec(module) is None:
            raise Missing(f"the calculator agent needs the package {module!r}, which is not installed here")
    sys.path.insert(0, str(CALC.parents[2] / "plugins" / "autogen" / "src"))
    from lightning_autogen import attach

    from examples.calc.app import build_agent, build_client
    from examples.calc.tasks import load_tasks

    client, draw = build_client(), random.Random(0)

    async def solve(task: lightning.Task) -> float:
        await attach(build_agent(client)).run(task=str(task.input["question"]))
        return draw.random()

    with tempfile.TemporaryDirectory() as name:
        models = {"calc's policy": CALC}
        if not where.quick:
            models["135M, random"] = Path(name) / "135M"
            random_network("135M", where.device).save_pretrained(models["135M, random"])
            load_tokenizer(str(CALC)).save_pretrained(models["135M, random"])
        for model, source in models.items():
            with rows.row(model=model) as row:
                folder, started = Path(name) / f"run-{source.name}", time.perf_counter()
                lightning.Trainer(
                    agents=["solver"],
                    algorithm=lightning.GRPO(group_size=8, tasks_per_step=2 if where.quick else 8),
                    backend=lightning.LocalBackend(source, device=str(where.device), context=2_048),
                    steps=2 if where.quick else 5,
                    folder=folder,
                    progress=False,
                ).fit(solve, train=load_tasks("train")[:64])
                _, metrics = asyncio.run(read(folder))
                for part in ("collect", "update", "publish", "step"):
                    row[part] = median(each.values[f"{part}_seconds"] for each in metrics[1:])
                row["trained tokens"] = median(each.values.get("tokens", 0.0) for each in metrics[1:])
                row["whole run"] = time.perf_counter() - started


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device")
    asked = parser.parse_args()
    train(asked.folder, asked.device)
