"""What must hold after all the kills, and what the undisturbed run says beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import psycopg

from lightning_core.plugins import load_plugins
from lightning_core.stores.base import Store
from lightning_core.trainer.session import open_store
from lightning_core.types import Call, Rollout, Status
from tests.faults.job import GROUP_SIZE, TASKS_PER_STEP, TURNS
from tests.faults.killing import Fault

Seen = tuple[str, int, str, str]
"""A reply as the app saw it: (rollout id, attempt, id of the reply, text)."""


def ledger(path: Path) -> list[Seen]:
    """What the app saw, all attempts."""
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
        completed = {i: [call for call in found if call.status == "completed"] for i, found in calls.items()}
        expect({len(found) for found in completed.values()}, {len(TURNS)}, "completed calls of a rollout")
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
    """Both runs trained on the same data, token by token; returns how many calls were compared."""
    plugins = load_plugins()
    async with open_store(killed, plugins) as first, open_store(calm, plugins) as second:
        mine, theirs = await told(first, run_id), await told(second, run_id)
        expect(mine.keys(), theirs.keys(), "rollouts")
        wrong = [rollout_id for rollout_id in theirs if mine[rollout_id] != theirs[rollout_id]]
        if wrong:
            one = min(wrong)
            raise Fault(
                f"{len(wrong)} of {len(theirs)} rollouts differ from the undisturbed run, the first is {one}:\n"
                f"{mine[one]}\n{theirs[one]}"
            )
        return sum(len(calls) for _, calls in theirs.values())


Told = tuple[float | None, list[tuple[object, ...]]]


async def told(store: Store, run_id: str) -> dict[str, Told]:
    """By rollout, all of it that training sees: (reward, calls)."""
    rollouts = await store.find_rollouts(run_id, split="train")
    calls = await store.get_calls([rollout.id for rollout in rollouts])
    return {
        one.id: (one.reward, [facts(c) for c in calls[one.id] if c.status == "completed"]) for one in rollouts
    }


def facts(call: Call) -> tuple[object, ...]:
    """What a call must be equal in; log-probabilities depend in their last digits on who shared the batch."""
    (choice,) = call.choices
    return call.agent, call.trained, call.policy_version, call.prompt_ids, choice.completion_ids


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Fault(f"{what}: {found!r}, where {wanted!r} should be")
