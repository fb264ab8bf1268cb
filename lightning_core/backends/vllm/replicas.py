"""Several of vLLM's servers as one engine: where a reply is sampled, and what if a server goes.

Each reply is one request to one server. If that server breaks off, the reply goes on at another one from the
tokens it has; their log-probabilities are those of the same weights, so nothing is lost and nothing sampled
twice. A server that is back takes part again once it has the current weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from lightning_core.backends.chat.completion import Completion, Wakes
from lightning_core.backends.vllm.checking import Facts, check_server
from lightning_core.backends.vllm.door import Door
from lightning_core.backends.vllm.routing import Replica, choose
from lightning_core.backends.vllm.thread import LoopThread
from lightning_core.backends.vllm.watching import Watch
from lightning_core.backends.vllm.wire import LostError, Piece, Wire, sampling_body
from lightning_core.errors import ConfigError, EngineError, GatewayError

logger = logging.getLogger(__name__)
WAKE_SECONDS = 0.03
"""How often the reader of a running reply is woken."""
TRIES = 3
"""Failures in a row of one reply, without a token between them, on servers that say they are well."""
Restore = Callable[[str, int], Awaitable[None]]
"""Gives the server at an address a version of the weights."""


class Replicas:
    """The servers. Methods may be called from any event loop and any thread."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        patience: float = 60.0,
        probe_seconds: float = 1.0,
        policy_version: int = 0,
        restore: Restore | None = None,
    ) -> None:
        """`model` is the name it is served under. `policy_version` is that of the weights the servers start
        with.

        A request waits up to `patience` seconds while no server answers. A server that comes back without the
        current weights is handed to `restore`; without one it stays out until `replace`.
        """
        if not urls:
            raise ConfigError("no servers; give the addresses of one or more, such as http://127.0.0.1:8000")
        self.model = model
        self._patience, self._restore = patience, restore
        self._version = policy_version
        self._replicas = [Replica(_clean(url), policy_version, policy_version) for url in urls]
        self._thread = LoopThread("lightning-vllm")
        self._tasks: dict[Completion, asyncio.Task[None]] = {}
        self._wakes = Wakes(0.0)
        self._door: Door | None = None
        self._wire: Wire | None = None
        self._watch = Watch(self, probe_seconds)
        self._facts: Facts | None = None

    @property
    def urls(self) -> list[str]:
        """Where the servers are."""
        return [replica.url for replica in self._replicas]

    @property
    def dead(self) -> list[str]:
        """Those that take no requests at present."""
        return [replica.url for replica in self._replicas if replica.lost is not None]

    @property
    def context(self) -> int | None:
        """Longest prompt plus completion that all servers take; known once they were checked."""
        return None if self._facts is None else self._facts.context

    @property
    def policy_version(self) -> int:
        """The version that answers what comes now."""
        return self._version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        """To be set by who has given these weights to every server that is not among the dead."""
        self._version = version
        for replica in self._replicas:
            if replica.lost is None:
                replica.version = version

    @property
    def restore(self) -> Restore | None:
        return self._restore

    @property
    def replicas(self) -> Sequence[Replica]:
        """The servers as they are known at present."""
        return self._replicas

    def replace(self, urls: Sequence[str]) -> None:
        """The servers are these from now on, with the current weights. Replies at others go on at these."""
        known = {replica.url: replica for replica in self._replicas}
        wanted = [_clean(url) for url in urls]
        if not wanted:
            raise ConfigError("no servers; give the addresses of one or more")
        self._replicas = [
            known[url] if url in known and known[url].lost is None else Replica(url, None, self._version)
            for url in wanted
        ]
        gone = [replica for replica in known.values() if replica not in self._replicas]
        self._thread.call(self._part, gone)

    async def check(self) -> int:
        """Ask every server whether it can be used; returns the context. Raises EngineError, by name."""
        facts = await self._thread.run(self._check())
        self._facts = facts
        return facts.context

    async def hold(self) -> None:
        """Keep new requests waiting; returns once those under way have ended."""
        await self._thread.run(self._open_door().hold())

    async def release(self) -> None:
        """Serve again what `hold` kept waiting."""
        await self._thread.run(self._open_door().release())

    async def ask(self, url: str, path: str, body: dict[str, object] | None = None) -> object:
        """A request of another kind to one server. Raises EngineError."""
        return await self._thread.run(self._asked(url, path, body))

    async def close(self) -> None:
        """End it; replies under way end with an error. A second time does nothing."""
        if not self._thread.stopped:
            await self._thread.run(self._close())
            await asyncio.to_thread(self._thread.stop)

    def submit(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Put a reply in line. Raises GatewayError once closed."""
        if self._thread.stopped:
            raise GatewayError("the connection to vLLM's servers was closed; start the backend again")
        completion.on_cancel = lambda: self._thread.call(self._cancel, completion)
        self._thread.call(self._start, completion, stop_ids)

    # all that follows runs in the thread's loop

    def _start(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        self._watch.start()
        task = asyncio.get_running_loop().create_task(self._serve(completion, stop_ids))
        self._tasks[completion] = task
        task.add_done_callback(lambda ended: self._ended(completion, ended))
        if completion.cancelled:
            task.cancel()

    def _cancel(self, completion: Completion) -> None:
        if completion in self._tasks:
            self._tasks[completion].cancel()

    def _ended(self, completion: Completion, task: asyncio.Task[None]) -> None:
        """Boundary: what went wrong ends this reply, the others go on."""
        del self._tasks[completion]
        if task.cancelled():
            completion.error = GatewayError("the reply was given up: it was cancelled, or its backend closed")
        elif (error := task.exception()) is not None:
            completion.error = error
        self._news(completion, at_once=True)

    async def _serve(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """One reply, from the line to its end."""
        request = completion.request
        async with self._open_door().inside(request):
            if request.policy_version is None:
                request.policy_version = self._version
            failures = 0
            while completion.finish_reason is None:
                had = len(completion.ids)
                replica = await self.choose(request.rollout)
                try:
                    await self._sample(replica, completion, stop_ids)
                except LostError as error:
                    failures = 1 if len(completion.ids) > had else failures + 1
                    ailment = await self._ailment(replica)
                    if ailment is not None:
                        self.lose(replica, f"{error}; {ailment}")
                    elif failures >= TRIES:
                        raise
                    _end(completion, stop_ids)

    async def _sample(self, replica: Replica, completion: Completion, stop_ids: frozenset[int]) -> None:
        body = sampling_body(completion, self.model, stop_ids)
        now = asyncio.get_running_loop().time
        replica.running += 1
        replica.heard = now()
        try:
            async with aclosing(self.wire.stream(replica.url, body, replica.responses)) as pieces:
                async for piece in pieces:
                    replica.heard = now()
                    first = not completion.ids
                    _write(completion, piece)
                    self._news(completion, at_once=first or completion.finish_reason is not None)
        finally:
            replica.running -= 1

    async def _ailment(self, replica: Replica) -> str | None:
        """What is wrong with a server that broke off; None if it is well, and still the same process."""
        ailment = await self.wire.ailment(replica.url)
        if ailment is None and replica.born is not None and await self.wire.born(replica.url) != replica.born:
            return "it was started anew"
        return ailment

    async def choose(self, rollout: str | None) -> Replica:
        """The server to ask, waited for while there is none. Raises EngineError, naming each."""
        replica = choose(self._replicas, rollout)
        if replica is None:
            try:
                async with asyncio.timeout(self._patience):
                    while (replica := choose(self._replicas, rollout)) is None:
                        await self._watch.wait()
            except TimeoutError as error:
                said = "; ".join(f"{each.url}: {each.lost}" for each in self._replicas)
                raise EngineError(
                    f"no server of model {self.model!r} has answered for {self._patience:g} s ({said}); "
                    "start them again, or give other addresses"
                ) from error
        return replica

    def lose(self, replica: Replica, why: str) -> None:
        """Send it nothing more; what is under way there goes on elsewhere."""
        if replica.lost is None:
            logger.warning("vLLM's server is out: %s", why)
        replica.lost = why
        for response in tuple(replica.responses):
            response.close()

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            self._wire = Wire()
        return self._wire

    def _open_door(self) -> Door:
        if self._door is None:
            self._door = Door()
        return self._door

    def _news(self, completion: Completion, *, at_once: bool) -> None:
        """Wake the reader, or soon."""
        if not self._wakes.due:
            asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wakes.send)
        self._wakes.add(completion.request)
        if at_once:
            self._wakes.send()

    def _part(self, gone: Sequence[Replica]) -> None:
        for replica in gone:
            self.lose(replica, "other servers have taken its place")
        self._watch.tell()

    async def _check(self) -> Facts:
        facts = [await check_server(self.wire, url, self.model) for url in self.urls]
        for replica in self._replicas:
            replica.born = await self.wire.born(replica.url)
        return min(facts, key=lambda fact: fact.context)

    async def _asked(self, url: str, path: str, body: dict[str, object] | None) -> object:
        answer: object = await self.wire.ask(url, path, body)
        return answer

    async def _close(self) -> None:
        await self._watch.close()
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._wire is not None:
            await self._wire.close()


def _clean(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _write(completion: Completion, piece: Piece) -> None:
    """Append what came; the ids last, so that they are never the longer ones."""
    completion.logprobs += piece.logprobs
    completion.best += piece.best
    completion.ids += piece.ids
    if piece.finish_reason in ("stop", "length"):
        completion.finish_reason = piece.finish_reason
    elif piece.finish_reason is not None:  # "abort": a server that shuts down, or was told to drop it
        raise LostError(f"a reply was ended with {piece.finish_reason!r}")


def _end(completion: Completion, stop_ids: frozenset[int]) -> None:
    """A reply may have all its tokens and lack only the word that it is at its end."""
    if completion.ids and completion.ids[-1] in stop_ids:
        completion.finish_reason = "stop"
    elif len(completion.ids) >= completion.options.max_tokens:
        completion.finish_reason = "length"
