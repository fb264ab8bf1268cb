"""Kill every role of a run again and again, and compare with a run that nobody disturbed.

    python -m tests.faults                       # 50 kills, 200 rollouts, 3 workers
    python -m tests.faults --kills 200 --seed 7

Trainer, gateway, three workers and the PostgreSQL server are processes of their own; each is ended with
SIGKILL at random and started anew. Exit with 1, and with what the processes said, if a rollout was lost or
counted twice, if a reply that the app saw is not stored, or if training saw other data.
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
    calm = undisturbed(killing.folder, steps)
    compared = asyncio.run(check.check_same(killing.store, calm, "run"))
    say(f"{compared} calls: the same, token by token, as in a run that nobody disturbed")


def undisturbed(folder: Path, steps: int) -> str:
    """The same training in one process, without kills; returns its store's URL."""
    run = folder / "calm" / "run"
    run.parent.mkdir()
    environment = {"FAULTS_LEDGER": str(folder / "calm-ledger"), "OMP_NUM_THREADS": "1"}
    arguments = ("train", str(SCRIPT), "--folder", str(run), "--steps", str(steps))
    role = Role("calm", arguments, environment, folder, nursery())
    role.start()
    assert role.process is not None
    role.process.join()
    if role.ended() != 0:
        raise Fault(f"the undisturbed run failed:\n{role.tail()}")
    return f"sqlite:///{run / 'store.db'}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
