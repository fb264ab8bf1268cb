"""A runner that runs nothing: each rollout ends as it ended in another store, with the same calls.

A trainer that was never disturbed is so given the data of one that was killed again and again. Both must come
to the same weights: then the killed one trained on each rollout once, and on its last attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_core.plugins import load_plugins
from lightning_core.records.types import Attempt
from lightning_core.stores.base import Store
from lightning_core.trainer.parts import open_store

LOOK_SECONDS = 0.2


async def replay(source: str, target: str, *, going: Callable[[], bool]) -> None:
    """Finish what the target's trainer asks for as the source has it, as long as that is `going`."""
    plugins = load_plugins()
    async with open_store(source, plugins) as past, open_store(target, plugins) as present:
        while going():
            if await present.wait_queued(LOOK_SECONDS):
                await _finish(past, present, await present.lease("replay", 100, 600.0))


async def _finish(past: Store, present: Store, attempts: Sequence[Attempt]) -> None:
    ids = [attempt.rollout.id for attempt in attempts]
    calls, ended = await past.get_calls(ids), {one.id: one for one in await past.get_rollouts(ids)}
    for attempt in attempts:
        for call in calls[attempt.rollout.id]:
            await present.add_call(call.model_copy(update={"attempt": attempt.number}))
        await present.finish(attempt, reward=ended[attempt.rollout.id].reward)
