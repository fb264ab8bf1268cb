"""Laws that hold after all the kills, and the result of an undisturbed trainer on the same data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from math import isclose, isnan, nan
from pathlib import Path

import psycopg
from safetensors.torch import load_file

from lightning_core.plugins import load_plugins
from lightning_core.records.types import Rollout, Status
from lightning_core.trainer.parts import open_store
from tests.faults.job import GROUP_SIZE, TASKS_PER_STEP, TURNS
from tests.faults.killing import Fault

COMPARED = ("reward", "rollouts", "groups", "zero_variance_groups", "loss", "grad_norm")
"""Numbers of a step that say what it was made of, and what it did."""
Seen = tuple[str, int, str, str]
"""A reply as the app saw it: (rollout id, attempt, id of the reply, text)."""


def ledger(path: Path) -> list[Seen]:
    """Returns the app's own records of all attempts."""
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


async def check_rollouts(url: str, run_id: str, steps: int) -> list[Rollout]:
    """Every rollout that was asked for is finished, once, with its calls and one final reward."""
    async with open_store(url, load_plugins()) as store:
        rollouts = await store.find_rollouts(run_id, split="train")
        ids = [rollout.id for rollout in rollouts]
        expect(len(set(ids)), steps * GROUP_SIZE * TASKS_PER_STEP, "rollouts")
        expect(Counter(rollout.status for rollout in rollouts), {Status.SUCCEEDED: len(ids)}, "their ends")
        per_step = Counter(rollout.step for rollout in rollouts)
        expect(set(per_step.values()), {GROUP_SIZE * TASKS_PER_STEP}, "rollouts of each step")
        rewards = await store.get_rewards(ids)
        expect({len(found) for found in rewards.values()}, {1}, "final rewards of a rollout")
        calls = await store.get_calls(ids)
        # a gateway that is killed between record and reply is asked again: one request, sampled twice
        answered = [{c.response_id for c in found if c.status == "completed"} for found in calls.values()]
        expect({len(replies) for replies in answered}, {len(TURNS)}, "requests of a rollout")
        metrics = await store.list_metrics(run_id)
        expect([entry.step for entry in metrics], list(range(steps)), "steps with numbers")
        expect({entry.values["rollouts"] for entry in metrics}, {GROUP_SIZE * TASKS_PER_STEP}, "trained on")
        return rollouts


def check_ledger(seen: Iterable[Seen], recorded: Iterable[tuple[str, int, str]]) -> int:
    """Every reply that the app saw is recorded; returns how many it saw."""
    known = set(recorded)
    replies = list(seen)
    lost = [one for one in replies if one[:3] not in known]
    if lost:
        raise Fault(
            f"{len(lost)} of {len(replies)} replies that the app saw are not stored, such as {lost[0]}"
        )
    return len(replies)


def recorded(url: str) -> list[tuple[str, int, str]]:
    """(rollout id, attempt, id of the reply) of every call in the store, those of earlier attempts too, which
    the store's own methods leave out."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT rollout_id, attempt, response_id FROM lightning.calls").fetchall()
    return [(str(rollout_id), int(attempt), str(reply_id)) for rollout_id, attempt, reply_id in rows]


async def check_same(killed: str, calm: str, run_id: str) -> int:
    """Both trainers made the same updates, number by number; returns how many."""
    plugins = load_plugins()
    async with open_store(killed, plugins) as first, open_store(calm, plugins) as second:
        mine, theirs = await first.list_metrics(run_id), await second.list_metrics(run_id)
    expect([entry.step for entry in mine], [entry.step for entry in theirs], "steps")
    for one, other in zip(mine, theirs, strict=True):
        for name in COMPARED:
            # a step of which nothing was to be learnt has no loss, in either
            found, expected = (entry.values.get(name, nan) for entry in (one, other))
            same = isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6)
            if not same and not (isnan(found) and isnan(expected)):
                raise Fault(f"{name} of step {one.step}: {found}, undisturbed {expected}")
    return len(mine)


def check_weights(killed: Path, calm: Path) -> float:
    """The largest difference between the weights that both came to, which must be next to nothing."""
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (killed, calm))
    expect(mine.keys(), theirs.keys(), "tensors")
    farthest = max(float((mine[name] - theirs[name]).abs().max()) for name in theirs)
    if farthest > 1e-5:
        raise Fault(f"the weights lie up to {farthest:.2g} from those of the undisturbed trainer")
    return farthest


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Fault(f"{what}: {found!r}, where {wanted!r} should be")
