"""vLLM's servers on a cluster: started, sent weights, and started again where one has ended.

Nothing of verl is imported here: who makes a replica, and who manages them, is told by `cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lightning_core.backends.verl.ray_link import (
    alive,
    ending_if,
    give_back,
    guard_all,
    kill,
    told,
    wait_until_free,
)


class Servers:
    """verl's replicas, each a vLLM server with the engines behind it."""

    def __init__(
        self,
        policy: Any,
        *,
        separate: bool,
        make: Callable[[int], Any],
        manage: Callable[[list[Any]], Any],
    ) -> None:
        """`policy` is the group of workers that train. `make` gives a replica for its number, not yet
        started; `manage` what brings weights to all of them. `separate`: they have GPUs of their own."""
        self._policy = policy
        self._separate = separate
        self._make = make
        self._manage = manage
        self._replicas: list[Any] = []
        self._manager: Any = None

    @property
    def addresses(self) -> list[str]:
        """URLs of the servers."""
        return [f"http://{replica.server_address}" for replica in self._replicas]

    @property
    def replicas(self) -> list[Any]:
        """verl's own, by number."""
        return self._replicas

    def start(self, count: int) -> None:
        """Start so many. Raises BackendError if one does not come up."""
        with told("the vLLM servers did not start"):
            self._replicas = [self._make(rank) for rank in range(count)]
            asyncio.run(self._start(self._replicas))
            self._manager = self._manage(self._replicas)

    def stop(self) -> None:
        """End them, and give back their GPUs. A second time does nothing."""
        for replica in self._replicas:
            self._end(replica)

    def kill(self) -> None:
        """End them, from any thread. They keep their GPUs: who is starting one there would wait for ever."""
        for replica in self._replicas:
            self._kill(replica)

    def revive(self) -> list[int]:
        """Start those again that are dead, until none is; they have the weights of the start until
        `send_weights`. Returns which. Raises BackendError if one does not come up."""
        revived: set[int] = set()
        with told("a vLLM server that had ended did not start again"):
            while dead := self._dead():
                self._start_again(dead)
                revived |= {*dead}
        return sorted(revived)

    def send_weights(self, version: int) -> None:
        """Let all have the weights under training, by verl's checkpoint engine; no request may be under way.
        Raises BackendError if one ends meanwhile, and the workers with it."""
        with (
            told("the weights did not reach the vLLM servers"),
            ending_if(
                lambda: not all(alive(replica.servers, busy=True) for replica in self._replicas),
                self._policy.workers,
            ),
        ):
            self._manager.update_weights(global_steps=version)

    def sleep(self) -> None:
        """Free their memory on the GPUs; `send_weights` takes it again."""
        with told("a vLLM server did not free its memory"):
            self._manager.sleep_replicas()

    async def _start(self, replicas: list[Any]) -> None:
        await asyncio.gather(
            *(
                each.init_standalone() if self._separate else each.init_hybrid(self._policy)
                for each in replicas
            )
        )
        guard_all(server for each in replicas for server in each.servers)

    def _end(self, replica: Any) -> None:
        self._kill(replica)
        if self._separate and replica.resource_pool is not None:
            give_back(replica.resource_pool)

    def _kill(self, replica: Any) -> None:
        kill(replica.servers)
        if self._separate:  # else its workers are the policy's
            kill(replica.workers)

    def _dead(self) -> list[int]:
        """Returns the servers that don't answer any more, or never did."""
        return [
            rank for rank, each in enumerate(self._replicas) if not each.servers or not alive(each.servers)
        ]

    def _start_again(self, dead: list[int]) -> None:
        gone = [self._replicas[rank] for rank in dead]
        for each in gone:
            self._end(each)
        if self._separate:
            wait_until_free(each.resource_pool for each in gone if each.resource_pool is not None)
        self._policy.forget_server()
        fresh = {rank: self._make(rank) for rank in dead}
        self._replicas = [fresh.get(rank, old) for rank, old in enumerate(self._replicas)]
        try:
            asyncio.run(self._start(list(fresh.values())))
        except BaseException:  # their names and GPUs must be free for the next try
            for each in fresh.values():
                self._end(each)
            raise
        self._manager = self._manage(self._replicas)
