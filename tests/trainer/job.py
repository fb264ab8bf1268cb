"""A real training job, small enough to be killed twenty times: two agents of a bare OpenAI client.

`fork_fit` runs it in a child of this process, which has imported everything already: what is tested is
the training process, not how long Python takes to start.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope

TASKS_PER_STEP, GROUP_SIZE = 2, 4
SMALL: Any = {"group_size": GROUP_SIZE, "tasks_per_step": TASKS_PER_STEP, "credit": "uniform"}
PHASE = 4
"""Steps of each phase."""
PHASES = 100


@dataclass(frozen=True)
class Plain:
    """GRPO, on-policy, and a checkpoint after each step."""

    checkpoint_every = 1
    staleness = replay = 0
    endless = PHASE * PHASES
    agents: ClassVar[list[str] | None] = ["writer"]
    policies: ClassVar[dict[str, str]] = {}

    def algorithm(self) -> Any:
        return lightning.GRPO(**SMALL)

    def groups(self, step: int) -> int:
        """Groups that a step trains on, or tries to."""
        return TASKS_PER_STEP

    def arm(self) -> None:
        """Prepare its own death; this one is killed from outside."""


@dataclass(frozen=True)
class Everything(Plain):
    """Staleness, replay, dynamic sampling, a curriculum, late checkpoints and phases, all at once."""

    checkpoint_every = 3
    staleness = replay = 1

    def algorithm(self) -> Any:
        ahead: Any = {**SMALL, "staleness": self.staleness, "replay": self.replay, "dynamic_sampling": 1}
        ahead |= {"curriculum": "question"}  # each of the seven tasks is a value
        turns = lightning.GRPO(**ahead), lightning.GRPO(**ahead, kl=0.01)
        return [lightning.Phase(turns[n % 2], PHASE) for n in range(PHASES)]

    def groups(self, step: int) -> int:
        """One of the groups of every other step says nothing, and is replaced."""
        return TASKS_PER_STEP + (step + 1) % 2


@dataclass(frozen=True)
class Several(Plain):
    """A policy for each agent, and a death at a point of its own work.

    Each update computes one loss, and the writer's policy comes first.
    """

    loss: int | None = None
    """Killed in the computation of the loss of this number, from 1."""
    saved: str | None = None
    """Killed before the folder whose path ends so appears."""
    agents = None
    policies: ClassVar[dict[str, str]] = {"critic": "b"}

    def algorithm(self) -> Any:
        losses, fatal = itertools.count(1), self.loss

        class Mortal(lightning.GRPO):
            def loss(self, *given: Any) -> Any:
                if next(losses) == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().loss(*given)

        return Mortal(**SMALL)

    def arm(self) -> None:
        """Strike at the rename that makes the folder appear."""
        if self.saved is None:
            return

        def strike(event: str, given: tuple[Any, ...]) -> None:
            if event == "os.rename" and str(given[1]).endswith(str(self.saved)):
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)


def fit(folder: Path, kind: Plain, *, steps: int, ended: Callable[[], object]) -> None:
    """Train; each rollout makes one call as `writer` and one as `critic`, and says when it `ended`."""
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
        scope = current_scope()
        assert scope is not None
        ended()
        return worth(kind, scope.rollout_id)

    lightning.Trainer(
        model="tiny",
        agents=kind.agents,
        policies=kind.policies,
        algorithm=kind.algorithm(),
        checkpoint_every=kind.checkpoint_every,
        backend=lightning.LocalBackend("tiny"),
        steps=steps,
        folder=folder,
        resume=(folder / "run.json").exists(),
        keep_checkpoints=5,
        progress=False,
    ).fit(solve, train=[{"question": f"List the boats with speed above {n}."} for n in range(7)])


def worth(kind: Plain, rollout_id: str) -> float:
    """The reward follows from the place in the group; the first group is equal where groups are added."""
    step, place, member = rollout_id.rpartition("-t")[2].split("-")
    if place == "0" and kind.groups(int(step.partition("r")[0])) > TASKS_PER_STEP:
        return 1.0
    return float(member) / GROUP_SIZE


@dataclass
class Fate:
    """When a job is killed: so many rollouts after it began, and a moment more.

    Counted in rollouts, so that a slow machine lets it come as far as a fast one. The moment more is at most
    the longest that nothing ended in the life before: a start, or an update with its checkpoint.
    """

    draw: random.Random
    most: int
    """Rollouts."""
    longest: float = 1.0
    """Seconds in which nothing ended."""

    def wait(self, ended: int) -> None:
        """Return when it is time; `ended` is the pipe that gets a byte from each rollout."""
        last, longest = time.monotonic(), 0.0
        for _ in range(self.draw.randrange(self.most)):
            if not os.read(ended, 1):
                return  # it ended by itself
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
        self.longest = longest or self.longest
        time.sleep(self.draw.uniform(0, self.longest))


def fork_fit(folder: Path, kind: Plain, *, steps: int, fate: Fate | None) -> int:
    """Fit in a forked child, killed with SIGKILL by its `fate`; returns its wait status."""
    ended, ending = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kind.arm()
            fit(folder, kind, steps=steps, ended=lambda: os.write(ending, b"."))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(ending)
    if fate is not None:
        fate.wait(ended)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(ended)
    return status
