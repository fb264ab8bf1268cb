"""The same 2,000 calls through the real gateway into a real store: what is recorded is the truth."""

from __future__ import annotations

from pathlib import Path

from lightning_core.records.types import Call
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.testing.truth import Tagged, mistakes, read_marks
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope
from tests.gateway.conftest import open_house
from tests.tracing.traffic import send

ROLLOUTS, CALLS = 112, 18


async def test_two_thousand_calls_are_recorded_under_their_own_rollout_agent_and_call(tmp_path: Path) -> None:
    async with SqliteStore(f"sqlite:///{tmp_path}/runs.db") as store, open_house(store=store) as house:
        names = [f"rollout-{index}" for index in range(ROLLOUTS)]
        tokens = {name: await house.rollout(name) for name in names}
        with instrument(lambda: None):
            made = await send(lambda name: Scope(name, 1, house.url, tokens[name]), ROLLOUTS, CALLS)
        calls = [call for of_one in (await store.get_calls(names)).values() for call in of_one]
    assert mistakes(_tagged(call) for call in calls) == []
    assert len({call.id for call in calls}) == len(calls) == made
    assert {call.status for call in calls} == {"completed"}


def _tagged(call: Call) -> Tagged:
    return Tagged(read_marks(call.request), call.rollout_id, call.agent, call.id)
