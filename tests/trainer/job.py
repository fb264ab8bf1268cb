"""A real training job, small enough to be killed twenty times: two agents of a bare OpenAI client.

`fork_fit` runs it in a child of this process, which has imported everything already: what is tested is
the training process, not how long Python takes to start.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from pathlib import Path

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope

TASKS_PER_STEP, GROUP_SIZE = 2, 4
CALLS_PER_ROLLOUT = 2


def fit(folder: Path, *, resume: bool, steps: int, staleness: int = 0, checkpoint_every: int = 1) -> None:
    """Train; each rollout makes one call as `writer` and one as `critic`."""
    import openai

    client = openai.AsyncOpenAI(api_key="none")

    async def solve(task: lightning.Task) -> float:
        text = str(task.input["question"])
        for name in ("writer", "critic"):
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
                )
            text = reply.choices[0].message.content or ""
        # the place in the group, so that no group is equal and every step makes an update
        scope = current_scope()
        assert scope is not None
        return float(scope.rollout_id.rpartition("-")[2]) / GROUP_SIZE

    lightning.Trainer(
        model="tiny",
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP, staleness=staleness),
        checkpoint_every=checkpoint_every,
        backend=lightning.LocalBackend("tiny", threads=1),
        steps=steps,
        folder=folder,
        resume=resume,
        progress=False,
    ).fit(solve, train=[{"question": f"List the boats with speed above {n}."} for n in range(7)])


def fork_fit(folder: Path, *, steps: int, kill_after: float | None, **options: int) -> int:
    """Fit in a forked child, killed with SIGKILL after so many seconds; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            fit(folder, resume=(folder / "run.json").exists(), steps=steps, **options)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]
