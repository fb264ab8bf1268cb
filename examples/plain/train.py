"""Train the writer and the rewriter of a program that knows nothing of this project, one process a rollout.

    agentlightning train examples/plain/train.py

The program is `agent.py`, but nothing here depends on its language: it is started, it reads its task from
standard input, and it finds its model where two environment variables say.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import lightning_core as lightning
from examples.sql.reward import execution_match
from examples.sql.tasks import load_tasks

PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("agent.py")))
"""`-I -S` leaves out site-packages, which the program does not need: 5 ms less at each start."""

TAIL = 2000
"""Characters of what a failed program wrote to standard error that its rollout's error shows."""


async def solve(task: lightning.Task) -> float:
    """Run the program once; the reward is 1 if its query returns what the gold query returns."""
    question, database = str(task.input["question"]), str(task.input["database"])
    environment = {
        **os.environ,
        **lightning.environment(agent="writer"),
        "REWRITER_BASE_URL": lightning.environment(agent="rewriter")["OPENAI_BASE_URL"],
    }
    printed = await run_program(PROGRAM, {"question": question, "database": database}, environment)
    return execution_match(json.loads(printed)["sql"], str(task.input["gold"]), database)


async def run_program(
    program: Sequence[str], task: Mapping[str, str], environment: Mapping[str, str]
) -> bytes:
    """Runs the program on the task and returns its output. Raises RuntimeError if it fails.

    It leads a process group of its own, of which nothing is left when this returns or is cancelled.
    """
    process = await asyncio.create_subprocess_exec(
        *program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, complaint = await process.communicate(json.dumps(task).encode())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        said = complaint.decode(errors="replace").strip()[-TAIL:]
        raise RuntimeError(f"{Path(program[-1]).name} ended with status {process.returncode}: {said}")
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    held_out = load_tasks(options.held_out, ".data/sql", limit=options.held_out_tasks)
    trainer = lightning.Trainer(
        model="tiny",
        agents=["writer", "rewriter"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        steps=40,
        group_by="form",
    )
    trainer.fit(solve, train=load_tasks("train", ".data/sql"), validation=held_out)


if __name__ == "__main__":
    main()
