"""The run that is killed again and again, until it has had its share and has come to its end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.job import GROUP_SIZE, TASKS_PER_STEP
from tests.faults.roles import Role, nursery
from tests.stores.postgres_server import PostgresServer

SCRIPT = Path(__file__).with_name("job.py")
WEIGHTS = {"worker": 5, "gateway": 3, "trainer": 3, "store": 3}
"""How often each role is the victim."""
ROLLOUTS_PER_STEP = GROUP_SIZE * TASKS_PER_STEP


class Fault(AssertionError):
    """Something that may not happen, with what the processes said."""


@dataclass(slots=True)
class Killing:
    """One trial: a run over PostgreSQL with a trainer, a gateway and workers of their own."""

    folder: Path
    server: PostgresServer
    store: str
    seed: int
    kills: int
    rollouts: int
    workers: int
    say: Callable[[str], None]
    victims: Counter[str] = field(default_factory=Counter)

    def run(self) -> int:
        """Kill and restart until there were enough kills and the run is finished; returns its steps."""
        draw = random.Random(self.seed)
        roles = self._roles()
        steps = -(-self.rollouts // ROLLOUTS_PER_STEP)
        trainer = roles["trainer"]
        self._start_all(roles, steps)
        try:
            while True:
                if sum(self.victims.values()) < self.kills:
                    time.sleep(draw.uniform(0.2, 1.6))
                    self._strike(draw, roles, steps)
                else:
                    time.sleep(0.2)
                self._revive(roles, steps)
                if trainer.exits and trainer.exits[-1] == 0 and not trainer.alive:
                    if sum(self.victims.values()) >= self.kills:
                        return steps
                    steps += 2  # it was faster than its killer
                    trainer.exits.clear()
                    self._start_all(roles, steps)
        finally:
            for role in roles.values():
                if role.alive:
                    role.kill()

    def _roles(self) -> dict[str, Role]:
        context = nursery()
        environment = {
            "FAULTS_LEDGER": str(self.folder / "ledger"),
            "FAULTS_PAUSE": "0.2",
            "OMP_NUM_THREADS": "1",
        }
        run = self.folder / "killed" / "run"
        shared = ("--store", self.store)
        commands = {
            "trainer": (
                *("train", str(SCRIPT), *shared, "--folder", str(run), "--set", "remote=runner,gateway"),
            ),
            "gateway": ("gateway", *shared, "--run", "run", "--name", "gateway"),
            **{
                f"worker-{n}": ("worker", str(SCRIPT), *shared, "--run", "run", "--name", f"worker-{n}")
                for n in range(self.workers)
            },
        }
        return {
            name: Role(name, arguments, environment, self.folder, context)
            for name, arguments in commands.items()
        }

    def _start_all(self, roles: dict[str, Role], steps: int) -> None:
        for role in roles.values():
            if not role.alive:
                self._start(role, steps)

    def _start(self, role: Role, steps: int) -> None:
        if role.name == "trainer":
            begun = (self.folder / "killed" / "run" / "run.json").exists()
            role.start("--steps", str(steps), *(["--resume"] if begun else []))
        else:
            role.start()

    def _strike(self, draw: random.Random, roles: dict[str, Role], steps: int) -> None:
        kind = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.victims[kind] += 1
        if kind == "store":
            self.server.crash()
            time.sleep(draw.uniform(0, 1.0))
            self.server.start()
            return
        role = draw.choice([role for name, role in roles.items() if name.startswith(kind)])
        if role.alive:
            role.kill()
        if kind != "trainer" or not (role.exits and role.exits[-1] == 0):
            self._start(role, steps)

    def _revive(self, roles: dict[str, Role], steps: int) -> None:
        """Whoever ended by itself did so because the run is finished; anything else is a fault."""
        for role in roles.values():
            code = role.ended()
            if code not in (None, 0):
                raise Fault(f"seed {self.seed}: {role.name} ended by itself with {code}:\n{role.tail()}")
            if code == 0 and role is not roles["trainer"] and roles["trainer"].alive:
                self._start(role, steps)  # it saw an end after which the trainer has gone on
