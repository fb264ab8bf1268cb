"""Real processes of one run, and what they left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightning_core.plugins import load_plugins
from lightning_core.records.types import Status
from lightning_core.trainer.parts import open_store
from tests.roles import job

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("job.py")
PER_STEP = job.GROUP_SIZE * job.TASKS_PER_STEP


@dataclass
class RunProcesses:
    """The processes of one run, in one folder; killed, each by its id, when the block ends."""

    path: Path
    store: str
    script: Path = SCRIPT
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> RunProcesses:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    @property
    def folder(self) -> Path:
        """The run's."""
        return self.path / "run"

    @property
    def seen(self) -> list[list[str]]:
        """Returns the app's records, line by line."""
        file = self.path / "seen"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def start(
        self, *arguments: object, before: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        """`agentlightning ARGUMENTS` as a process of its own; `before` is a command that runs it."""
        log = (self.path / f"{len(self.started)}-{arguments[0]}.log").open("wb")
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "lightning_core.cli", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SEEN": str(self.path / "seen"), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self.started.append(process)
        return process

    def train(self, *flags: object, **more: object) -> subprocess.Popen[bytes]:
        """A trainer."""
        return self.start(
            "train", self.script, "--store", self.store, "--folder", self.folder, *flags, **more
        )  # type: ignore[arg-type]

    def work(self, name: str, *flags: object, **more: object) -> subprocess.Popen[bytes]:
        """A worker."""
        given = ("--store", self.store, "--name", name, "--set", "concurrency=4", *flags)
        return self.start("worker", self.script, *given, **more)  # type: ignore[arg-type]

    def until(self, true: Callable[[], object], *living: subprocess.Popen[bytes]) -> None:
        """Wait for what must become true while these processes live."""
        while not true():
            for process in living:
                assert process.poll() is None, self.said()
            time.sleep(0.02)

    def steps(self) -> int:
        """Updates that a checkpoint holds."""
        return max((int(path.name[5:]) for path in (self.folder / "checkpoints").glob("step-*")), default=0)

    def port(self) -> int:
        """Where the trainer's gateway listens, also after a resume."""
        return int(json.loads((self.folder / "run.json").read_text())["port"])

    def said(self) -> str:
        """Returns the output of all of them."""
        return "\n".join(f"== {log.name}\n{log.read_text()}" for log in sorted(self.path.glob("*.log")))

    def check(self, steps: int) -> None:
        """Every planned rollout was finished once, and every reply that an app has seen is in the store."""
        asyncio.run(self._check(steps))

    async def _check(self, steps: int) -> None:
        async with open_store(self.store, load_plugins()) as store:
            (run,) = await store.list_runs()
            assert run.status == "finished", self.said()
            left = {member.data["pid"] for member in await store.list_members(run.id)}
            assert left <= {process.pid for process in self.started if process.returncode == -9}
            rollouts = await store.find_rollouts(run.id)
            assert Counter(rollout.step for rollout in rollouts) == dict.fromkeys(range(steps), PER_STEP)
            assert {rollout.status for rollout in rollouts} == {Status.SUCCEEDED}, self.said()
            calls = await store.get_calls([rollout.id for rollout in rollouts])
            for rollout in rollouts:
                done = [call for call in calls[rollout.id] if call.status == "completed"]
                assert Counter(call.agent for call in done) == {"writer": 1, "critic": 1}, rollout.id
                last = [w for w in self.seen if w[:3] == ["seen", rollout.id, str(rollout.attempts)]]
                assert {words[3] for words in last} == {call.response_id for call in done}, rollout.id
            metrics = await store.list_metrics(run.id)
            assert [entry.values["rollouts"] for entry in metrics] == [PER_STEP] * steps
            assert [entry.values["policy_version"] for entry in metrics] == list(range(1, steps + 1))
