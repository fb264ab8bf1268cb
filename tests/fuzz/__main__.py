"""Send the gateway thousands of requests that are almost right, while ordinary rollouts go on beside them.

    python -m tests.fuzz                           # 20,000 cases
    python -m tests.fuzz --suite constraints       # requests whose reply is held to a form
    python -m tests.fuzz --cases 500 --seed 7
    python -m tests.fuzz --seed 7 --only 17 17 17  # this case, three times

A gateway over SQLite and the tiny model runs in a process of its own. Exit with 1 if the server fails, hangs,
or refuses without a reason; if a bystander hears or has stored anything else than in peace; if what was
stored can't be trained on; or if memory or descriptors grow. Beside constraints, bystanders' waiting time is
compared with that in pauses.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tiny_server import TinyServer
from tests.fuzz.campaign import Campaign, Outcome, find_culprits, percentile
from tests.fuzz.constraints import CONSTRAINTS
from tests.fuzz.faults import Fault
from tests.fuzz.grammar import REQUESTS, Suite
from tests.fuzz.memory import check_memory, fill_memory

MEMORY_GIB = 6
"""Address space of the server: an attack on its memory shall not take the machine's."""
SUITES = {suite.name: suite for suite in (REQUESTS, CONSTRAINTS)}
_FILLED = 2_000
"""Cases from which on the memory that the engine keeps for prompts is filled first."""
_MEASURED = 10_000
"""Cases from which on the slope of the memory is judged."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", choices=SUITES, default=REQUESTS.name, help="kind of the cases")
    parser.add_argument("--cases", type=int, default=20_000, help="how many (default: 20000)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the cases")
    parser.add_argument("--only", type=int, nargs="+", metavar="CASE", help="these cases of that seed")
    parser.add_argument("--blame", action="store_true", help="try alone what may have hung or disturbed")
    options = parser.parse_args()
    numbers: Sequence[int] = options.only or range(options.cases)
    suite = SUITES[options.suite]
    say(f"{suite.name}, seed {options.seed}: {len(numbers)} cases")
    began = time.perf_counter()
    outcome = fuzz(suite, options.seed, numbers, measured=len(numbers) >= _MEASURED)
    report(outcome, time.perf_counter() - began)
    if options.blame:
        blame(suite, options.seed, outcome)
    sys.exit(1 if len(outcome.faults) else 0)


def fuzz(
    suite: Suite, seed: int, numbers: Sequence[int], *, measured: bool = False, quiet: bool = False
) -> Outcome:
    """Send these cases to a server of their own."""
    with tempfile.TemporaryDirectory(prefix="lightning-fuzz-") as folder:
        with TinyServer(Path(folder), memory_gib=MEMORY_GIB) as server:
            if len(numbers) >= _FILLED:
                fill_memory(server)
            campaign = Campaign(server, suite, seed, numbers, (lambda _: None) if quiet else say)
            outcome = asyncio.run(campaign.run())
        if measured and (fault := check_memory(outcome.memory, suite.most_slope)):
            outcome.faults.add(fault)
        if len(outcome.faults) and not quiet:
            say(f"the last of the server's log:\n{server.log.read_text(errors='replace')[-3000:]}")
    return outcome


def report(outcome: Outcome, seconds: float) -> None:
    """Prints the findings, and the cases by target and status."""
    statuses = sorted({status for _, status in outcome.table})
    say(f"\n{'':12}" + "".join(f"{status:>10}" for status in statuses))
    for target in sorted({target for target, _ in outcome.table}):
        say(f"{target:12}" + "".join(f"{outcome.table[target, status] or '':>10}" for status in statuses))
    before, after = outcome.descriptors
    first, last = outcome.memory[0][1] / 2**20, outcome.memory[-1][1] / 2**20
    say(
        f"\n{outcome.done} cases in {seconds:.0f} s beside {outcome.rounds} undisturbed rollouts; memory "
        f"{first:.0f} to {last:.0f} MiB; descriptors {before} before, {after} after; the longest health "
        f"check took {outcome.longest_silence:.1f} s; {outcome.restarts} restarts"
    )
    for waits, when in ((outcome.waits, "beside the cases"), (outcome.waits_in_pauses, "in pauses")):
        if waits:
            half, most = percentile(waits, 0.5), percentile(waits, 0.99)
            say(f"{len(waits)} calls of bystanders {when}: p50 {half:.3f} s, p99 {most:.3f} s")
    say("the slowest: " + ", ".join(f"case {number}, {took:.1f} s" for took, number in outcome.slowest))
    for line in outcome.faults.lines():
        say(line)


def blame(suite: Suite, seed: int, outcome: Outcome) -> None:
    """Say which cases cause alone what was seen elsewhere."""
    for same in list(outcome.faults.found.values()):
        fault: Fault = same[0]
        if not fault.sure and fault.kind in ("hang", "crash", "memory", "bystander"):
            found = find_culprits(lambda numbers: fuzz(suite, seed, numbers, quiet=True), fault)
            say(f"{fault.kind}, of {len(fault.cases)} cases these cause it alone: {found or 'none'}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
