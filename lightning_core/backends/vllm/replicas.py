"""Several of vLLM's servers as one engine.

Each reply is one request to one server. If that server breaks off, the reply goes on at another one from the
tokens it has; their log-probabilities are those of the same weights, so nothing is lost and nothing sampled
twice. A server that is slow keeps its replies: `watching` says what counts as dead. One that is back takes
part again once it has the current weights. Each server has a limit of replies under way; the rest wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from lightning_core.backends.chat.completion import Completion
from lightning_core.backends.meter import Meter
from lightning_core.backends.vllm.checking import ASK_SECONDS, check_server
from lightning_core.backends.vllm.door import Door
from lightning_core.backends.vllm.routing import NONE, Replica
from lightning_core.backends.vllm.serving import Alive, Restore, Revive, Rules, Serving
from lightning_core.backends.vllm.thread import LoopThread
from lightning_core.backends.vllm.wire import LostError
from lightning_core.errors import ConfigError, GatewayError

PER_PLACE = 2
"""Replies under way at a server for each that it samples at a time: the next are there when some end."""


class Replicas:
    """The servers. Methods may be called from any event loop and any thread."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        patience: float = 60.0,
        probe_seconds: float = 1.0,
        silence: float = 60.0,
        max_running: int = 512,
        policy_version: int = 0,
        starts_with: int | None = None,
        alive: Alive | None = None,
        restore: Restore | None = None,
        revive: Revive | None = None,
        busy: Meter | None = None,
    ) -> None:
        """`model` is the name it is served under. `policy_version` is that of the weights the servers have,
        `starts_with` that of the weights they would have after a restart; None: that is not known.

        At most `max_running` replies are under way at one server; the others wait in the order in which they
        came. A request waits up to `patience` seconds while no server answers.

        A server is given up once its process has ended (`alive` says whether it is there), once it refuses
        several probes, `probe_seconds` apart, or after `silence` seconds without a byte of any reply or an
        answer to a probe. `revive` is told of it then. A server that comes back without the current weights
        is handed to `restore`; without one it stays out until `replace`. These functions are called in an
        event loop of this object's own. `busy` counts while a server has a reply to sample.
        """
        if max_running < 1:
            raise ConfigError(f"max_running={max_running!r} must be at least 1")
        start = NONE if starts_with is None else starts_with
        replicas = [Replica(url, start, policy_version) for url in _clean(urls)]
        rules = Rules(patience, probe_seconds, silence, alive, restore, revive)
        door = Door(policy_version, max_running)
        self._serving = Serving(replicas, model, door, rules, busy or Meter())
        self._thread = LoopThread("lightning-vllm")
        self._context: int | None = None

    @property
    def urls(self) -> list[str]:
        """Where the servers are."""
        return [replica.url for replica in self._serving.replicas]

    @property
    def dead(self) -> list[str]:
        """Those that take no requests at present."""
        return [replica.url for replica in self._serving.replicas if replica.lost is not None]

    @property
    def held(self) -> bool:
        """Whether new requests wait."""
        return self._serving.door.held

    @property
    def sent(self) -> dict[str, int]:
        """Replies that each was ever asked for; the rest of one that another had begun counts as one."""
        return {replica.url: replica.sent for replica in self._serving.replicas}

    @property
    def running(self) -> dict[str, int]:
        """Replies under way at each."""
        return {replica.url: replica.running for replica in self._serving.replicas}

    @property
    def waiting(self) -> dict[str, int]:
        """Replies that wait for their turn at each."""
        return {replica.url: len(replica.waiting) for replica in self._serving.replicas}

    @property
    def model(self) -> str:
        """What the servers are asked for; may be set, as to a LoRA's name."""
        return self._serving.model

    @model.setter
    def model(self, name: str) -> None:
        self._serving.model = name

    @property
    def context(self) -> int | None:
        """Longest prompt plus completion that all servers take; known once they were checked."""
        return self._context

    @property
    def policy_version(self) -> int:
        """The version that answers what comes now."""
        return self._serving.door.version

    async def set_version(self, version: int, given: Collection[str]) -> None:
        """What comes now is answered by this version, which was given to the servers at these addresses. One
        that came back meanwhile is out again, until it was restored."""
        await self._thread.run(self._set_version(version, given))

    def replace(self, urls: Sequence[str]) -> None:
        """The servers are these from now on, with the current weights. Replies at others go on at these."""
        known = {replica.url: replica for replica in self._serving.replicas}
        version = self._serving.door.version
        self._serving.replicas = [
            known[url] if url in known and known[url].lost is None else Replica(url, NONE, version)
            for url in _clean(urls)
        ]
        gone = [replica for replica in known.values() if replica not in self._serving.replicas]
        self._thread.call(self._serving.part, gone)

    async def check(self) -> int:
        """Ask every server whether it can be used; returns the context. Raises EngineError, by name."""
        self._context = await self._thread.run(self._check())
        return self._context

    async def hold(self, *, last: bool = False) -> None:
        """Keep new requests waiting; returns once those under way have ended.

        `last`: no server will be given the present weights any more. Where none is left that has them, a
        reply without a token waits as new requests do, and one that has some ends with an error.
        """
        await self._thread.run(self._serving.hold(last))

    async def release(self) -> None:
        """Serve again what `hold` kept waiting."""
        await self._thread.run(self._serving.release())

    async def drop(self, url: str, why: str) -> None:
        """The server's weights are not what they should be: it is out until they were restored."""
        await self._thread.run(self._drop(url, why))

    async def ask(self, url: str, path: str, body: Mapping[str, object] | None = None) -> object:
        """A request of another kind to one server, and its JSON. Raises EngineError."""
        return await self._thread.run(self._ask(url, path, body))

    async def close(self) -> None:
        """End it; replies under way end with an error. A second time does nothing."""
        if not self._thread.stopped:
            await self._thread.run(self._serving.close())
            await asyncio.to_thread(self._thread.stop)

    def submit(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Put a reply in line. Raises GatewayError once closed."""
        if self._thread.stopped:
            raise GatewayError("the connection to vLLM's servers was closed; start the backend again")
        completion.on_cancel = lambda: self._thread.call(self._serving.cancel, completion)
        self._thread.call(self._serving.start, completion, stop_ids)

    async def _check(self) -> int:
        replicas, wire = self._serving.replicas, self._serving.wire
        contexts = [await check_server(wire, each.url, self.model) for each in replicas]
        for replica in replicas:
            with suppress(LostError):  # it is asked again
                replica.born = await wire.born(replica.url, ASK_SECONDS)
        return min(contexts)

    async def _set_version(self, version: int, given: Collection[str]) -> None:
        self._serving.set_version(version, given)

    async def _drop(self, url: str, why: str) -> None:
        self._serving.distrust(url, why)

    async def _ask(self, url: str, path: str, body: Mapping[str, object] | None) -> object:
        answer: object = await self._serving.wire.ask(url, path, body)
        return answer


def _clean(urls: Sequence[str]) -> list[str]:
    if not urls:
        raise ConfigError("no servers; give the addresses of one or more, such as http://127.0.0.1:8000")
    return [url.rstrip("/").removesuffix("/v1") for url in urls]
