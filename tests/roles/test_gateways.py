"""An attempt that fails for want of its gateway is given back: its failure says nothing of the app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Attempt, Rollout, Status, Task
from lightning_core.runner.gateways import Gateways, find_instance
from lightning_core.runner.runner import Runner
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.scope import Scope, current_scope
from tests.gateway.scripted import ScriptedEngine


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemoryStore() as opened:
        yield opened


@asynccontextmanager
async def gateway(store: Store, name: str = "one", port: int = 0) -> AsyncIterator[int]:
    """A gateway that is a member of the run; gives its port."""
    made = Gateway(ScriptedEngine(), store, Tokens(b"0123456789abcdef"), agents=None)
    async with GatewayServer(made, port=port) as server:
        member = make_member("run", "gateway", name, url=server.url, instance=made.instance)
        async with Heartbeat(store, member):
            yield urlsplit(server.url).port or 0


def make_scope(attempt: Attempt, url: str, instance: str) -> Scope:
    return Scope(attempt.rollout.id, attempt.number, url, token="key", gateway_instance=instance)


class App:
    """Begins, waits until it is let go on, and asks its gateway how it is."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Scope] = asyncio.Queue()
        self.go = asyncio.Event()

    async def __call__(self, task: Task) -> float:
        scope = current_scope()
        assert scope is not None
        await self.begun.put(scope)
        await self.go.wait()
        if task.input.get("broken"):
            raise RuntimeError("the app's own fault")
        async with httpx.AsyncClient() as client:
            (await client.get(f"{scope.gateway_url}/healthz")).raise_for_status()
        if len(task.input) == 2 and scope.attempt == 1:
            raise RuntimeError("the gateway had forgotten its call")
        return 1.0


@asynccontextmanager
async def running(app: App, store: Store, **task: bool) -> AsyncIterator[None]:
    """A runner, and one rollout that may be tried once."""
    rollout = Rollout(
        id="r", run_id="run", task=Task(input={"i": 1, **task}), group_id="g", step=0, max_attempts=1
    )
    await store.enqueue([rollout])
    gateways, stop = Gateways(store, "run", make_scope), asyncio.Event()
    runner = Runner(app, store, run_id="run", scope_for=gateways.scope_for, gateways=gateways)
    serving = asyncio.create_task(runner.serve(stop))
    try:
        yield
    finally:
        stop.set()
        await serving


async def test_nothing_is_begun_before_there_is_a_gateway(store: Store) -> None:
    app = App()
    async with running(app, store):
        await asyncio.sleep(0)
        (rollout,) = await store.find_rollouts("run")
        assert rollout.status is Status.QUEUED
        app.go.set()
        async with gateway(store):
            (done,) = await store.wait_finished(["r"])
    assert (done.status, done.attempts) == (Status.SUCCEEDED, 1)


async def test_an_attempt_whose_gateway_is_away_is_given_back_and_waits_for_the_next(store: Store) -> None:
    app = App()
    async with running(app, store):
        async with gateway(store) as port:
            await app.begun.get()
        app.go.set()
        assert await store.wait_queued(60, run_id="run")
        async with gateway(store, port=port):
            (done,) = await store.wait_finished(["r"])
    assert (done.status, done.attempts, done.error) == (Status.SUCCEEDED, 2, None)


async def test_a_gateway_that_has_begun_anew_at_the_same_address_is_another_one(store: Store) -> None:
    app = App()
    async with running(app, store, forgotten=True):
        async with gateway(store) as port:
            await app.begun.get()
        async with gateway(store, port=port):
            app.go.set()
            (done,) = await store.wait_finished(["r"])
    assert (done.status, done.attempts) == (Status.SUCCEEDED, 2)


async def test_a_failure_beside_a_gateway_that_is_there_is_the_app_s_own(store: Store) -> None:
    app = App()
    app.go.set()
    async with running(app, store, broken=True), gateway(store):
        (done,) = await store.wait_finished(["r"])
    assert (done.status, done.attempts) == (Status.FAILED, 1)
    assert "the app's own fault" in (done.error or "")


async def test_a_rollout_keeps_to_one_of_several_gateways_and_the_dead_are_passed_over(store: Store) -> None:
    gateways = Gateways(store, "run", make_scope)
    attempts = [
        Attempt(
            rollout=Rollout(id=f"r{n}", run_id="run", task=Task(input={}), group_id="g", step=0),
            number=1,
            worker="w",
            lease_until=0,
        )
        for n in range(40)
    ]
    async with gateway(store, "one"), gateway(store, "two"):
        await store.put_member(
            make_member("run", "gateway", "dead", url="http://127.0.0.1:1", instance="gone")
        )
        await gateways.ready()
        first, second = ([gateways.scope_for(one).gateway_url for one in attempts] for _ in range(2))
    assert first == second
    assert len(set(first)) == 2
    assert "http://127.0.0.1:1" not in first


async def test_whoever_answers_otherwise_at_the_address_is_no_gateway(store: Store) -> None:
    assert await find_instance("http://127.0.0.1:1") is None
    async with gateway(store) as port:
        assert await find_instance(f"http://127.0.0.1:{port}/elsewhere") is None


@pytest.mark.parametrize(
    "url", ["http://a:port", "http://[1", "http://\x00", "nonsense", "http://" + "a" * 70_000]
)
async def test_nobody_answers_at_an_address_that_is_none(url: str) -> None:
    assert await find_instance(url) is None
