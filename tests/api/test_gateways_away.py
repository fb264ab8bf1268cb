"""Gateways that are away: nobody is sent to them, and what failed because of them costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from lightning_core.records.types import Member, Rollout, Status
from tests.api.conftest import Desk, rollout, serving


async def test_nothing_is_leased_while_a_run_s_gateways_are_away(desk: Desk) -> None:
    await desk.store.enqueue([Rollout.model_validate(rollout("a"))])
    data: dict[str, Any] = {"instance": "x"}
    gone = Member(run_id="run", role="gateway", name="g", url="http://127.0.0.1:9", data=data)
    await desk.store.put_member(gone)
    assert await desk.lease() == []
    waiting = asyncio.create_task(desk.lease(wait=60))
    await asyncio.sleep(0.05)
    (left,) = await desk.store.get_rollouts(["a"])
    assert left.status is Status.QUEUED
    await desk.store.remove_member("run", "gateway", "g")
    async with asyncio.timeout(30):
        (lease,) = await waiting
    assert lease["environment"] is None
    assert lease["attempt"]["number"] == 1


async def test_a_failure_while_the_gateway_was_away_costs_nothing(desk: Desk, free_port: int) -> None:
    await desk.store.enqueue([Rollout.model_validate(rollout(name)) for name in "abc"])
    async with serving(desk.store, free_port):
        a, b, c = [one["key"] for one in await desk.lease(limit=3)]
        body = {"key": a, "error": "broke"}
        failed = await desk.post("/leases/finish", body, scope="worker")
        assert failed["status"] == "failed"
    body = {"key": b, "error": "connection refused"}
    assert (await desk.post("/leases/finish", body, scope="worker"))["status"] == "queued"
    async with serving(desk.store, free_port):  # another one, which does not know the attempt
        body = {"key": c, "error": "connection refused", "reward": 0.0}
        assert (await desk.post("/leases/finish", body, scope="worker"))["status"] == "queued"
        leases = await desk.lease(limit=3)
        assert [one["attempt"]["rollout"]["id"] for one in leases] == ["b", "c"]
        body = {"key": leases[0]["key"], "error": "broke"}
        assert (await desk.post("/leases/finish", body, scope="worker"))["status"] == "failed"
