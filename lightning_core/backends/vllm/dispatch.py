"""vLLM's servers and the replies in flight at them, all in one event loop (`upstream.Replicas` owns it).

A server is lost once it refuses a connection or a probe, or after `silence` seconds without a byte of any
reply or an answer to a probe. A slow one is not lost: thousands of replies make a server slow to answer, so
each piece of a reply is a sign of life. A reply whose server is lost ends with an error; the app's SDK asks
again, or the rollout is tried again. What waits for its turn at a lost server goes to another one.

A rollout stays with one server, whose prefix cache then holds its conversation: the server with the highest
hash of (rollout, address) among those that answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from lightning_core.backends.meter import Meter
from lightning_core.backends.serving.completion import WAKE_SECONDS, Completion, CompletionRequest, Wakes
from lightning_core.backends.vllm.client import (
    Client,
    LostError,
    Piece,
    RefusedError,
    SilentError,
    sampling_body,
)
from lightning_core.errors import ConstraintError, EngineError, GatewayError

logger = logging.getLogger(__name__)
PROBES = 4
"""A server is probed so many times within `silence`."""
HOLD = "start it with --structured-outputs-config.backend guidance, and vLLM 0.12 or newer"
Revive = Callable[[], Awaitable[None]]
"""Starts a server again if its process has ended."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold for all servers."""

    most: int
    """Replies in flight at one server."""
    server_timeout: float
    """Seconds that a request waits while no server answers."""
    probe_seconds: float
    silence: float
    """Seconds without a sign of life after which a server is lost."""
    take_back: bool
    """Whether a lost server that answers again takes part; else it waits for `Pool.replace`."""
    revive: Revive | None


@dataclass(eq=False, slots=True)
class Replica:
    """One server, as seen from here."""

    url: str
    slots: asyncio.Semaphore
    """One for each reply that may be in flight; others once it was lost."""
    lost: str | None = None
    """Why it takes no requests; None: it answers."""
    sent: int = 0
    """Replies it was ever asked for."""
    running: int = 0
    """Replies in flight."""
    waiting: int = 0
    """Replies that wait for a slot."""
    heard: float = field(default_factory=time.monotonic)
    """When something came from it last, or the first of the replies in flight was sent to it."""
    doubted: bool = False
    """Whether it broke a reply off, and has answered no probe since."""
    streams: set[asyncio.Timeout] = field(default_factory=set)
    """Timeouts of the replies in flight; one that is due breaks its reply off."""


class Pool:
    """Chooses among the servers and probes them."""

    def __init__(self, urls: Sequence[str], client: Client, rules: Rules, version: int) -> None:
        self.rules = rules
        self.replicas = [Replica(url, self._slots()) for url in urls]
        self.version = version
        """Version of the weights that answer the next requests."""
        self._client = client
        self._watching: asyncio.Task[None] | None = None
        self._looks: dict[Replica, asyncio.Task[None]] = {}
        """In flight; a slow server keeps no other waiting."""
        self._change = asyncio.Event()

    def start(self) -> None:
        """Begin to probe, once."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """End the probes."""
        if self._watching is not None:
            tasks = [self._watching, *self._looks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def choose(self, rollout: str | None) -> Replica | None:
        """The server to ask; None if none answers. Without a rollout: the one with the fewest replies."""
        answering = [replica for replica in self.replicas if replica.lost is None]
        if not answering:
            return None
        if rollout is None:
            return min(answering, key=lambda replica: replica.running + replica.waiting)
        return max(answering, key=lambda replica: _rank(rollout, replica.url))

    async def changed(self) -> None:
        """Wait until a server is lost or comes back."""
        await self._change.wait()

    def tell(self) -> None:
        """End every `changed`."""
        self._change.set()
        self._change = asyncio.Event()

    def lose(self, replica: Replica, why: str) -> None:
        """Send it nothing more; replies in flight there end with an error."""
        if replica.lost is not None:
            return
        logger.warning("vLLM's server is out: %s", why)
        replica.lost, replica.doubted = why, False
        for _ in range(replica.waiting):  # they find that it is lost
            replica.slots.release()
        replica.slots = self._slots()
        now = asyncio.get_running_loop().time()
        for stream in replica.streams:
            stream.reschedule(now)
        replica.streams.clear()
        self.tell()

    def doubt(self, replica: Replica) -> None:
        """It broke a reply off: probe it now."""
        if replica.lost is None:
            replica.doubted = True
            self._look_soon(replica)

    def replace(self, urls: Sequence[str], version: int | None) -> None:
        """The servers are these from now on; those that answer keep their replies."""
        known = {replica.url: replica for replica in self.replicas}
        self.version = self.version if version is None else version
        self.replicas = [
            known[url] if url in known and known[url].lost is None else Replica(url, self._slots())
            for url in urls
        ]
        for replica in known.values():
            if replica not in self.replicas:
                self.lose(replica, f"{replica.url}: other servers have taken its place")
        self.tell()

    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.rules.most)

    # probes -------------------------------------------------------------------------------
    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.rules.probe_seconds)
            for replica in self.replicas:
                self._look_soon(replica)

    def _look_soon(self, replica: Replica) -> None:
        if replica not in self._looks:
            look = asyncio.get_running_loop().create_task(self._look(replica))
            self._looks[replica] = look
            look.add_done_callback(lambda _: self._looks.pop(replica))

    async def _look(self, replica: Replica) -> None:
        """Boundary: an unexpected error about one server is logged, and the next look may do better."""
        try:
            if replica.lost is None:
                await self._look_at_answering(replica)
            elif self.rules.take_back:
                await self._look_at_lost(replica)
        except Exception:
            logger.exception("vLLM's server %s could not be probed", replica.url)

    @property
    def _probe_timeout(self) -> float:
        """How long the answer to a probe may take, and a silence before the first."""
        return self.rules.silence / PROBES

    async def _look_at_answering(self, replica: Replica) -> None:
        silent = time.monotonic() - replica.heard
        if replica.running and not replica.doubted and silent < self._probe_timeout:
            return
        problem = await self._client.find_problem(replica.url, self._probe_timeout)
        now = time.monotonic()
        if problem is None:
            replica.heard, replica.doubted = now, False
        elif not isinstance(problem, SilentError) or now - replica.heard >= self.rules.silence:
            self.lose(replica, str(problem))

    async def _look_at_lost(self, replica: Replica) -> None:
        problem = await self._client.find_problem(replica.url, self._probe_timeout)
        if problem is not None:
            replica.lost = str(problem)
            if self.rules.revive is not None:
                await self.rules.revive()
            return
        replica.lost, replica.heard = None, time.monotonic()
        logger.warning("vLLM's server %s is back", replica.url)
        self.tell()


def _rank(rollout: str, url: str) -> bytes:
    return hashlib.blake2b(f"{rollout} {url}".encode(), digest_size=8).digest()


class Dispatcher:
    """The replies in flight, at most `rules.most` at each server, in the order in which they came.

    While weights are about to change no new request begins. A request of which a choice is being answered
    goes on: its choices are answered by one version.
    """

    def __init__(self, pool: Pool, client: Client, model: str, busy: Meter) -> None:
        self.model = model
        self._pool, self._client, self._busy = pool, client, busy
        self._tasks: dict[Completion, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        """Set when a reply has ended."""
        self._open = asyncio.Event()
        """Whether new requests may begin."""
        self._open.set()
        self._wakes = Wakes()

    def start(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Begin with a reply."""
        self._pool.start()
        task = asyncio.get_running_loop().create_task(self._serve(completion, stop_ids))
        self._tasks[completion] = task
        task.add_done_callback(lambda ended: self._end(completion, ended))
        if completion.cancelled:
            task.cancel()

    def cancel(self, completion: Completion) -> None:
        """Break it off, which has its server stop."""
        if completion in self._tasks:
            self._tasks[completion].cancel()

    async def close(self) -> None:
        """Break off everything."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def hold(self) -> None:
        """Begin nothing new; returns once all that had begun has ended."""
        self._open.clear()
        self._pool.tell()  # who waits for a server waits for `release` from now on
        while any(each.request.policy_version is not None for each in self._tasks):
            self._ended.clear()
            await self._ended.wait()

    async def release(self) -> None:
        """Begin what waits."""
        self._open.set()

    def _end(self, completion: Completion, task: asyncio.Task[None]) -> None:
        """Boundary: what went wrong ends this reply, the others go on."""
        del self._tasks[completion]
        if task.cancelled():
            completion.error = GatewayError("the reply was given up: it was cancelled, or its backend closed")
        elif (error := task.exception()) is not None:
            completion.error = error
        self._ended.set()
        self._wake(completion, at_once=True)

    async def _serve(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """One reply, from the line to its end. Raises EngineError if its server is lost."""
        replica, slots = await self._enter(completion.request)
        try:
            self._check(completion.request, replica)
            body = sampling_body(completion, self.model, stop_ids)
            replica.sent += 1
            with self._busy:
                async with asyncio.timeout(None) as until_lost:
                    replica.streams.add(until_lost)
                    try:
                        await self._read(replica, completion, body)
                    finally:
                        replica.streams.discard(until_lost)
        except TimeoutError as error:
            raise _broken(str(replica.lost)) from error
        except RefusedError as error:
            self._pool.lose(replica, str(error))
            raise _broken(str(error)) from error
        except LostError as error:
            self._pool.doubt(replica)
            raise _broken(str(error)) from error
        finally:
            replica.running -= 1
            slots.release()

    async def _enter(self, request: CompletionRequest) -> tuple[Replica, asyncio.Semaphore]:
        """The server at which the reply has a slot, and its slots. Raises EngineError if none answers in
        time."""
        while True:
            if request.policy_version is None:
                await self._open.wait()
            replica = self._pool.choose(request.rollout)
            if replica is not None and (slots := await self._take_slot(replica, request)):
                return replica, slots
            if request.policy_version is not None:
                raise _broken("its server was lost before all choices of the request were answered")
            if replica is None:
                await self._wait_for_server()

    async def _take_slot(self, replica: Replica, request: CompletionRequest) -> asyncio.Semaphore | None:
        """Wait for a slot of a server; None if it was lost before, or if nothing new may begin."""
        slots = replica.slots
        replica.waiting += 1
        try:
            await slots.acquire()
        finally:
            replica.waiting -= 1
        begun = request.policy_version is not None
        if slots is not replica.slots or replica.lost is not None or not (begun or self._open.is_set()):
            slots.release()
            return None
        request.policy_version = (
            self._pool.version if request.policy_version is None else request.policy_version
        )
        if not replica.running:
            replica.heard = time.monotonic()
        replica.running += 1
        return slots

    async def _wait_for_server(self) -> None:
        seconds = self._pool.rules.server_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._pool.changed()
        except TimeoutError as error:
            why = "; ".join(f"{each.url}: {each.lost}" for each in self._pool.replicas)
            raise EngineError(
                f"no server of model {self.model!r} has answered for {seconds:g} s ({why}); "
                "start them again, or give other addresses"
            ) from error

    def _check(self, request: CompletionRequest, replica: Replica) -> None:
        if replica.lost is not None:
            raise LostError(replica.lost)
        if request.policy_version != self._pool.version:
            raise EngineError("the weights changed between two choices of this request; send it again")

    async def _read(self, replica: Replica, completion: Completion, body: dict[str, Any]) -> None:
        async with aclosing(self._client.stream(replica.url, body)) as pieces:
            async for piece in pieces:
                replica.heard = time.monotonic()
                if piece.ids or piece.finish_reason:
                    first = not completion.ids
                    _write(completion, piece)
                    self._wake(completion, at_once=first or completion.finish_reason is not None)

    def _wake(self, completion: Completion, *, at_once: bool) -> None:
        """Wake the reader, now or soon."""
        if not self._wakes.due:
            asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wakes.send)
        self._wakes.add(completion.request)
        if at_once:
            self._wakes.send()


def _broken(why: str) -> EngineError:
    return EngineError(f"a vLLM server failed during this reply: {why}; send the request again")


def _write(completion: Completion, piece: Piece) -> None:
    """Append what came; the ids last, so that they are never the longer ones. Raises EngineError for a token
    that the reply's grammar does not allow: its log-probability is not that under the grammar's masks."""
    if completion.matcher is not None:
        for token_id in piece.ids:
            try:
                completion.matcher.take(token_id)
            except ConstraintError as error:
                raise EngineError(f"the server holds replies to no form: {error}; {HOLD}") from error
    completion.logprobs += piece.logprobs
    completion.best += piece.best
    completion.ids += piece.ids
    if piece.finish_reason in ("stop", "length"):
        completion.finish_reason = piece.finish_reason
    elif piece.finish_reason is not None:  # "abort": a server that shuts down, or was told to drop it
        raise LostError(f"the server ended it with {piece.finish_reason!r}")
