"""Kill every role of a run again and again, and compare with a trainer that nobody disturbed.

    python -m tests.faults                       # 50 kills, 200 rollouts, 3 workers
    python -m tests.faults --kills 200 --seed 7

Trainer, gateway, three workers and the PostgreSQL server are processes of their own; each is ended with
SIGKILL at random and started anew. Exit with 1, and with what the processes said, if a rollout was lost or
counted twice, if a reply that the app saw is not stored, or if training made anything else of its data than a
trainer that was left in peace.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import check
from tests.faults.killing import SCRIPT, Fault, Killing
from tests.faults.replaying import replay
from tests.faults.roles import Role, nursery
from tests.stores.postgres_server import serving


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="at least so many (default: 50)")
    parser.add_argument("--rollouts", type=int, default=200, help="at least so many (default: 200)")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default: 3)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**32), help="of who is killed, and when"
    )
    parser.add_argument("--folder", type=Path, help="kept afterwards (default: a temporary one)")
    options = parser.parse_args()
    say(f"seed {options.seed}: {options.kills} kills, {options.rollouts} rollouts, {options.workers} workers")
    with tempfile.TemporaryDirectory(prefix="lightning-faults-") as temporary, serving() as server:
        folder = options.folder or Path(temporary)
        (folder / "killed").mkdir(parents=True)
        killing = Killing(
            folder=folder,
            server=server,
            store=server.url(),
            seed=options.seed,
            kills=options.kills,
            rollouts=options.rollouts,
            workers=options.workers,
            say=say,
        )
        try:
            report(killing)
        except Fault as fault:
            say(f"FAULT, seed {options.seed}: {fault}")
            sys.exit(1)


def report(killing: Killing) -> None:
    began = time.perf_counter()
    steps = killing.run()
    victims = ", ".join(f"{name} {count}" for name, count in sorted(killing.victims.items()))
    total = sum(killing.victims.values())
    say(f"{total} kills in {time.perf_counter() - began:.0f} s: {victims}; {steps} updates made")
    rollouts = asyncio.run(check.check_rollouts(killing.store, "run", steps))
    attempts = sum(rollout.attempts for rollout in rollouts)
    say(f"{len(rollouts)} rollouts finished, each exactly once, in {attempts} attempts")
    seen = check.ledger(killing.folder / "ledger")
    say(f"{check.check_ledger(seen, check.recorded(killing.store))} replies that the app saw: all are stored")
    calm = asyncio.run(undisturbed(killing, steps))
    updates = asyncio.run(check.check_same(killing.store, calm, "run"))
    farthest = check.check_weights(killing.folder / "killed/run/policy", killing.folder / "calm/run/policy")
    say(f"{updates} updates, each as a trainer in peace makes it; weights within {farthest:.1g}")


async def undisturbed(killing: Killing, steps: int) -> str:
    """A trainer that nobody kills, given what the other one's rollouts came to; returns its store's URL."""
    folder = killing.folder
    run = folder / "calm" / "run"
    run.parent.mkdir()
    store = f"sqlite:///{run.parent / 'store.db'}"
    environment = {"FAULTS_LEDGER": str(folder / "calm-ledger"), "OMP_NUM_THREADS": "1"}
    arguments = ("train", str(SCRIPT), "--folder", str(run), "--store", store, "--set", "remote=runner")
    trainer = Role("calm", (*arguments, "--steps", str(steps)), environment, folder, nursery())
    trainer.start()
    await replay(killing.store, store, going=lambda: trainer.alive)
    if trainer.ended() != 0:
        raise Fault(f"the undisturbed trainer failed:\n{trainer.tail()}")
    return store


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
