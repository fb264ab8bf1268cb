"""Automatic rewards are made once, and not where requests are answered."""

from __future__ import annotations

import threading

import lightning_core as lightning
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Rollout, Status, Task
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.batch import add_automatic
from lightning_core.trainer.parts import make_rulebook


async def test_rules_are_asked_outside_the_event_loop():
    threads: list[str] = []

    def rule(records):
        threads.append(threading.current_thread().name)
        return []

    rulebook = make_rulebook(lightning.AIR(functions=[rule]), load_plugins([]))
    done = Rollout(
        id="r", run_id="run", task=Task(id="t", input={}), group_id="g", step=0,
        status=Status.SUCCEEDED, attempts=1, reward=1.0,
    )  # fmt: skip
    async with MemoryStore() as store:
        await store.enqueue(
            [done.model_copy(update={"status": Status.QUEUED, "attempts": 0, "reward": None})]
        )
        assert rulebook is not None
        assert await add_automatic(store, rulebook, [done], {"r": []}, {"r": []}) == {"r": []}
    assert len(threads) == 1
    assert threading.current_thread().name not in threads
