"""Train the model behind mini-swe-agent on small repositories, each with a failing test.

    make harnesses
    agentlightning train examples/coder/train.py

The harness is its own program, unchanged. In each rollout it works in a folder of its own, writes nowhere
else, and is ended with everything it has started when its time is over. The reward is 1 if the test passes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from asyncio import create_subprocess_exec, wait_for
from asyncio.subprocess import DEVNULL
from pathlib import Path

import lightning_core as lightning
from examples.coder.fence import fenced
from examples.coder.tasks import TEST, make_tasks, write

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / ".data/harnesses/mini-swe-agent/bin/mini"
"""Where `make harnesses` puts it."""
FRESH = ("-I", "-B", "-X", "pycache_prefix=/dev/null")
"""The test reads the sources, never what Python kept of them: a change within a second may go unnoticed."""


async def solve(task: lightning.Task) -> float:
    """Let the harness work on the repository, then run its test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(task.input, folder)
        command = lightning.Command(
            fenced(name, mini(str(task.input["prompt"]), name)), agent="coder", folder=folder, pass_task=False
        )
        await command(task)
        (folder / TEST).write_text(str(task.input["test"]))  # the harness may have changed it
        return float(await passes(name))


def mini(prompt: str, folder: str) -> list[str]:
    """mini-swe-agent, which keeps its own files in the folder too."""
    program = str(INSTALLED) if INSTALLED.exists() else shutil.which("mini") or "mini"
    home = [
        f"HOME={folder}",
        f"TMPDIR={folder}",
        "MSWEA_CONFIGURED=true",
        "MSWEA_COST_TRACKING=ignore_errors",
    ]
    configs = ["-c", "mini_textbased.yaml", "-c", str(HERE / "mini.yaml")]
    options = ["-m", "openai/policy", "--model-class", "litellm_textbased", "-y", "--exit-immediately"]
    return ["env", *home, program, *options, *configs, "-t", prompt]


async def passes(folder: str) -> bool:
    """Whether the repository's test passes, within ten seconds and fenced as well."""
    test = await create_subprocess_exec(
        *fenced(
            folder, [sys.executable, *FRESH, "-c", f"import sys; sys.path[:0] = ['.']; import {TEST[:-3]}"]
        ),
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        stderr=DEVNULL,
    )
    try:
        return await wait_for(test.wait(), 10) == 0
    except TimeoutError:
        test.kill()
        return False


def main() -> None:
    trainer = lightning.Trainer(
        model="smollm2",
        agents=["coder"],
        algorithm=lightning.GRPO(group_size=4, tasks_per_step=2),
        steps=4,
        timeout=120,
        concurrency=4,
    )
    trainer.fit(solve, train=make_tasks(40, seed=1), validation=make_tasks(4, seed=2))


if __name__ == "__main__":
    main()
