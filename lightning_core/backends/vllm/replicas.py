"""Several of vLLM's servers as one engine, to be called from any event loop and any thread.

The gateway's loop reads replies and the trainer's publishes weights, so what both meet runs in a thread with
an event loop of its own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from lightning_core.backends.chat.completion import Completion
from lightning_core.backends.meter import Meter
from lightning_core.backends.vllm.client import CHECK_SECONDS, Client, check_server
from lightning_core.backends.vllm.dispatch import Dispatcher, DrainGate
from lightning_core.backends.vllm.pool import NONE, Alive, Pool, Replica, Restore, Revive, Rules
from lightning_core.errors import ConfigError, GatewayError

T = TypeVar("T")
PER_SLOT = 2
"""Replies in flight at a server for each that it samples at a time: the next are there when some end."""


class Replicas:
    """The servers. Methods may be called from any event loop and any thread."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        server_timeout: float = 60.0,
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

        At most `max_running` replies are in flight at one server; the others wait in the order in which they
        came. A request waits up to `server_timeout` seconds while no server answers.

        A server is lost once its process has ended (`alive` says whether it runs), once it refuses a probe
        (one every `probe_seconds` where there is doubt), or after `silence` seconds without a byte of any
        reply or an answer to a probe. Then `revive` is called. A server that comes back without the current
        weights is handed to `restore`; without one it stays out until `replace`. These functions are called
        in an event loop of this object's own. `busy` counts while a server has a reply to sample.
        """
        if max_running < 1:
            raise ConfigError(f"max_running={max_running!r} must be at least 1")
        rules = Rules(server_timeout, probe_seconds, silence, alive, restore, revive)
        start = NONE if starts_with is None else starts_with
        self._client = Client()
        replicas = [Replica(url, start, policy_version) for url in _clean(urls)]
        self._pool = Pool(replicas, self._client, rules, policy_version)
        self._gate = DrainGate(self._pool, max_running)
        self._dispatcher = Dispatcher(self._pool, self._client, self._gate, model, busy or Meter())
        self._thread = LoopThread("lightning-vllm")
        self._context: int | None = None

    @property
    def urls(self) -> list[str]:
        """Where the servers are."""
        return [replica.url for replica in self._pool.replicas]

    @property
    def dead(self) -> list[str]:
        """Those that take no requests at present."""
        return [replica.url for replica in self._pool.replicas if replica.lost is not None]

    @property
    def held(self) -> bool:
        """Whether new requests wait."""
        return self._gate.is_shut

    @property
    def sent(self) -> dict[str, int]:
        """Replies that each was ever asked for."""
        return {replica.url: replica.sent for replica in self._pool.replicas}

    @property
    def running(self) -> dict[str, int]:
        """Replies in flight at each."""
        return {replica.url: replica.running for replica in self._pool.replicas}

    @property
    def waiting(self) -> dict[str, int]:
        """Replies that wait for their turn at each."""
        return {replica.url: len(replica.waiting) for replica in self._pool.replicas}

    @property
    def model(self) -> str:
        """What the servers are asked for; may be set, as to a LoRA's name."""
        return self._dispatcher.model

    @model.setter
    def model(self, name: str) -> None:
        self._dispatcher.model = name

    @property
    def context(self) -> int | None:
        """Longest prompt plus completion that all servers take; known once they were checked."""
        return self._context

    @property
    def policy_version(self) -> int:
        """The version that answers what comes now."""
        return self._pool.version

    async def set_version(self, version: int, given: Collection[str]) -> None:
        """What comes now is answered by this version, which was given to the servers at these addresses. One
        that came back meanwhile is out again, until it was restored. To be called between `hold` and
        `release`."""

        async def change() -> None:
            self._pool.set_version(version, given)

        await self._thread.run(change())

    def replace(self, urls: Sequence[str]) -> None:
        """The servers are these from now on, with the current weights. Replies at others end with an
        error."""
        self._thread.call(self._pool.replace, _clean(urls))

    async def check(self) -> int:
        """Ask every server whether it can be used; returns the context. Raises EngineError, by name."""
        self._context = await self._thread.run(self._check())
        return self._context

    async def hold(self) -> None:
        """Keep new requests waiting; returns once those in flight have ended."""

        async def drain() -> None:
            self._gate.shut()
            await self._dispatcher.drained()

        await self._thread.run(drain())

    async def release(self) -> None:
        """Serve again what `hold` kept waiting."""

        async def open_gate() -> None:
            self._gate.open()

        await self._thread.run(open_gate())

    async def drop(self, url: str, why: str) -> None:
        """The server's weights are not what they should be: it is out until they were restored."""

        async def distrust() -> None:
            self._pool.distrust(url, why)

        await self._thread.run(distrust())

    async def ask(self, url: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """A request of another kind to one server, and its JSON. Raises EngineError."""
        return await self._thread.run(self._client.ask(url, path, body))

    async def close(self) -> None:
        """End it; replies in flight end with an error. A second time does nothing."""
        if not self._thread.stopped:
            await self._thread.run(self._close())
            await asyncio.to_thread(self._thread.stop)

    def submit(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Put a reply in line. Raises GatewayError once closed."""
        if self._thread.stopped:
            raise GatewayError("the connection to vLLM's servers was closed; start the backend again")
        completion.on_cancel = lambda: self._thread.call(self._dispatcher.cancel, completion)
        self._thread.call(self._dispatcher.start, completion, stop_ids)

    async def _check(self) -> int:
        contexts = [await check_server(self._client, url, self.model) for url in self.urls]
        await self._pool.learn_start_times(CHECK_SECONDS)
        return min(contexts)

    async def _close(self) -> None:
        await self._pool.close()
        await self._dispatcher.close()
        await self._client.close()


def _clean(urls: Sequence[str]) -> list[str]:
    if not urls:
        raise ConfigError("no servers; give the addresses of one or more, such as http://127.0.0.1:8000")
    return [url.rstrip("/").removesuffix("/v1") for url in urls]


class LoopThread:
    """An event loop in a thread: starts when it is first needed; `stop` ends it for good."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.stopped = False

    def call(self, work: Callable[..., object], *arguments: object) -> None:
        """Have the loop do this soon, in the order of the calls; after `stop`, nothing."""
        with self._starting:
            if not self.stopped:
                self._started().call_soon_threadsafe(work, *arguments)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await it there."""
        with self._starting:
            if self.stopped:
                work.close()
                raise RuntimeError(f"{self._name} was stopped")
            future = asyncio.run_coroutine_threadsafe(work, self._started())
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the loop and wait for the thread; what is still in flight there is cancelled."""
        with self._starting:
            self.stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = _new_loop()
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
