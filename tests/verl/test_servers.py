"""Servers that have GPUs of their own, under a real Ray that was there before: what ends gives its GPU back.

In place of verl's replicas and vLLM's servers stand actors that only hold what those would hold.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import ray

from lightning_core.backends.verl import ray_link
from lightning_core.backends.verl.servers import Servers
from lightning_core.errors import BackendError

GPU_SECONDS = 60.0
"""How long a replica waits for its GPU before the test fails."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def start_actor(**options: Any) -> Any:
    """A server, or a worker beside its engine. Its class goes to Ray by value: these tests are not there."""

    class Actor:
        def be_busy(self, seconds: float) -> None:
            time.sleep(seconds)

        def get_server_address(self) -> str:
            return "127.0.0.1:1"

        def collective_rpc(self, method: str) -> str:
            return method

    return ray.remote(Actor).options(**options).remote()


class Pool:
    """A pool of one GPU."""

    def __init__(self) -> None:
        self.pgs = [ray.util.placement_group([{"CPU": 1, "GPU": 1}])]
        if not self.pgs[0].wait(GPU_SECONDS):
            raise AssertionError("the GPU was not given back")


class Replica:
    """The part of verl's replica that is used. One that is `broken` ends when it has its GPU and is about to
    serve."""

    def __init__(self, broken: bool, looks: bool) -> None:
        self.broken, self.looks = broken, looks
        self.servers: list[Any] = []
        self.workers: list[Any] = []
        self.resource_pool: Any = None

    async def init_standalone(self) -> None:
        if self.looks and not ray.available_resources().get("GPU"):
            raise RuntimeError("no GPU is free")  # verl looks once
        self.resource_pool = Pool()
        (group,) = self.resource_pool.pgs
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        self.workers = [start_actor(scheduling_strategy=place, num_gpus=1, num_cpus=1)]
        await self.workers[0].get_server_address.remote()
        if self.broken:
            raise RuntimeError("no memory is left")
        self.servers = [start_actor(num_cpus=0)]
        await self.servers[0].get_server_address.remote()


class Policy:
    """The workers that train."""

    workers: tuple[Any, ...] = ()

    def forget_server(self) -> None:
        """They have none."""


def make_servers(broken: list[bool], *, looks: bool = False) -> Servers:
    """Whose replicas are broken or not, in the order they are made; each may look for its GPU first."""
    waiting = iter(broken)
    return Servers(
        Policy(),
        separate=True,
        make=lambda rank: Replica(next(waiting), looks),
        manage=lambda replicas: None,
    )


def end(actor: Any) -> None:
    """Kill it, and return once it is dead: it may answer between the two."""
    ray.kill(actor)
    with suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.get_server_address.remote(), timeout=GPU_SECONDS)


@pytest.mark.usefixtures("cluster")
def test_a_server_is_started_again_after_a_try_that_failed_and_gives_its_gpu_back_at_the_end() -> None:
    servers = make_servers([False, True, False], looks=True)
    servers.start(1)
    end(servers.replicas[0].servers[0])
    with pytest.raises(BackendError, match="did not start again: no memory is left"):
        servers.revive()
    assert servers.revive() == [0]
    assert servers.revive() == []
    servers.stop()
    servers.stop()
    others = make_servers([False])
    others.start(1)
    others.stop()


@pytest.mark.usefixtures("cluster")
def test_servers_that_did_not_come_up_give_their_gpu_back() -> None:
    servers = make_servers([True])
    with pytest.raises(BackendError, match="did not start: no memory is left"):
        servers.start(1)
    servers.stop()
    others = make_servers([False])
    others.start(1)
    others.stop()


@pytest.mark.usefixtures("cluster")
def test_a_server_that_is_slow_to_say_that_it_lives_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_link, "ALIVE_SECONDS", 4.0)
    servers = make_servers([False])
    servers.start(1)
    servers.replicas[0].servers[0].be_busy.remote(5.0)
    assert servers.revive() == []
    servers.stop()
