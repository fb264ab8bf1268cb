"""How many queries of the SQL example the database refused, step by step.

    python -m research.invalid_queries runs/with-air runs/without

Counted from what the checker was shown, one result for each query that the app ran. So the count is there for
any run of the example, with AIR or without, and does not depend on AIR's own linking.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lightning_core.cli.rollouts import open_run
from lightning_core.records.types import Call
from lightning_core.stores.base import Store

CHECKER = "check_query"
SPAN = 5
"""Steps in one line of the table."""


@dataclass(frozen=True, slots=True)
class Queries:
    """The queries of one step's training rollouts."""

    step: int
    rollouts: int
    queries: int
    invalid: int
    """Queries that the database refused."""


async def invalid_queries(store: Store, run_id: str, split: str = "train") -> list[Queries]:
    """One entry for each step of a run of the SQL example, in order."""
    rollouts = await store.find_rollouts(run_id, split=split)
    steps = {rollout.id: rollout.step for rollout in rollouts}
    number, queries, invalid = Counter(steps.values()), Counter[int](), Counter[int]()
    for rollout_id, calls in (await store.get_calls(steps)).items():
        checks = [call for call in calls if call.agent == CHECKER]
        queries[steps[rollout_id]] += len(checks)
        invalid[steps[rollout_id]] += sum(map(_shows_error, checks))
    return [Queries(step, number[step], queries[step], invalid[step]) for step in sorted(number)]


def _shows_error(check: Call) -> bool:
    messages = check.request.get("messages")
    shown = messages[-1] if isinstance(messages, list) else None
    text = str(shown.get("content")) if isinstance(shown, dict) else ""
    return text.rpartition("\nResult: ")[2].startswith("Error: ")


async def _of_folder(folder: Path) -> list[Queries]:
    async with open_run(folder) as (store, run_id):
        return await invalid_queries(store, run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of the SQL example")
    for folder in parser.parse_args().runs:
        steps = asyncio.run(_of_folder(folder))
        print(f"{folder}: invalid queries for each rollout")
        for first in range(0, len(steps), SPAN):
            part = steps[first : first + SPAN]
            rate = sum(step.invalid for step in part) / sum(step.rollouts for step in part)
            print(f"  steps {part[0].step + 1:3} to {part[-1].step + 1:3}  {rate:.3f}")


if __name__ == "__main__":
    main()
