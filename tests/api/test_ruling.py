"""Workers in any language keep the rules that the run's trainer wrote down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightning_core.experience.returns import FailurePolicy
from lightning_core.records.types import Rollout, Status
from lightning_core.runner.config import RECORDED, RolloutConfig
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from tests.api.conftest import RUN, Desk, error, open_desk, rollout, serving


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Desk]:
    async with open_desk(store, listening=False) as opened, serving(store):
        yield opened


async def begin(desk: Desk, rules: RolloutConfig, **fields: Any) -> dict[str, Any]:
    """A lease of a rollout in a run with these rules."""
    await desk.store.put_run(RUN.model_copy(update={"config": {RECORDED: rules.written()}}))
    await desk.store.enqueue([Rollout.model_validate(rollout("a", **fields))])
    (lease,) = await desk.lease()
    return lease


async def test_a_failure_for_good_gets_the_penalty_and_may_be_told_twice(desk: Desk) -> None:
    rules = RolloutConfig("solve", 30.0, FailurePolicy(retries=1, then=-0.5), judged=False)
    lease = await begin(desk, rules, max_attempts=2)
    assert lease["timeout"] == 30.0
    body = {"key": lease["key"], "error": "broke"}
    for _ in range(2):
        assert (await desk.post("/leases/finish", body, scope="worker"))["status"] == "queued"
    (lease,) = await desk.lease()
    body = {"key": lease["key"], "error": "broke"}
    for _ in range(2):
        failed = await desk.post("/leases/finish", body, scope="worker")
        assert (failed["status"], failed["reward"]) == ("failed", -0.5)


async def test_a_success_without_a_reward_is_refused_and_may_be_mended(desk: Desk) -> None:
    lease = await begin(desk, RolloutConfig("solve", None, FailurePolicy(), judged=False))
    body = {"key": lease["key"]}
    answer = await desk.ask("POST", "/leases/finish", body, scope="worker")
    assert "no final reward" in error(answer, 422, "invalid_value")["message"]
    reward = {"rewards": [{"rollout_id": "a", "attempt": 1, "value": 0.5}], "keys": [lease["key"]]}
    await desk.post("/rewards", reward, scope="worker")
    for _ in range(2):
        done = await desk.post("/leases/finish", body, scope="worker")
        assert (done["status"], done["reward"]) == ("succeeded", 0.5)


async def test_a_judge_s_training_rollouts_end_without_a_reward_and_its_evaluations_do_not(
    desk: Desk,
) -> None:
    rules = RolloutConfig("solve", None, FailurePolicy(), judged=True)
    lease = await begin(desk, rules)
    done = await desk.post("/leases/finish", {"key": lease["key"]}, scope="worker")
    assert (done["status"], done["reward"]) == ("succeeded", None)
    await desk.store.enqueue([Rollout.model_validate(rollout("b", split="validation"))])
    (lease,) = await desk.lease()
    answer = await desk.ask("POST", "/leases/finish", {"key": lease["key"]}, scope="worker")
    error(answer, 422, "invalid_value")


async def test_a_record_that_can_not_be_read_is_named(desk: Desk) -> None:
    await desk.store.put_run(RUN.model_copy(update={"config": {RECORDED: {"solve": 1}}}))
    await desk.store.enqueue([Rollout.model_validate(rollout("a"))])
    answer = await desk.ask("POST", "/leases", {"worker": "w1"}, scope="worker")
    assert "'run'" in error(answer, 422, "invalid_value")["message"]
    (left,) = await desk.store.find_rollouts("run")
    assert left.status is Status.QUEUED


async def test_a_trainer_s_rollouts_wait_for_its_gateway() -> None:
    rules = RolloutConfig("solve", None, FailurePolicy(), judged=False)
    async with open_desk(MemoryStore(), listening=False) as desk:
        await desk.store.put_run(RUN.model_copy(update={"config": {RECORDED: rules.written()}}))
        await desk.store.enqueue([Rollout.model_validate(rollout("a"))])
        assert await desk.lease() == []
        async with serving(desk.store) as url:
            (lease,) = await desk.lease(wait=30)
    assert lease["environment"]["OPENAI_BASE_URL"].startswith(url)
