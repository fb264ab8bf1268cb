"""Replies at several servers: where each is sampled, and how it goes on if its server goes.

All of this runs in one event loop; `replicas.Replicas` is the door to it from other loops and threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lightning_core.backends.chat.completion import Completion, Request, Wakes
from lightning_core.backends.meter import Meter
from lightning_core.backends.vllm.door import Door
from lightning_core.backends.vllm.routing import NONE, Replica, choose
from lightning_core.backends.vllm.watching import Watch
from lightning_core.backends.vllm.wire import LostError, Piece, Wire, sampling_body
from lightning_core.errors import EngineError, GatewayError

logger = logging.getLogger(__name__)
WAKE_SECONDS = 0.03
"""How often the reader of a running reply is woken."""
TRIES, AGAIN_SECONDS = 3, 0.2
"""Failures in a row of one reply, without a token between them, on servers that say they are well."""
LOSSES = 5
"""The same, whatever they say: a request that kills every server it is sent to must come to an end."""
Restore = Callable[[str, int], Awaitable[None]]
"""Gives the server at an address a version of the weights."""
Revive = Callable[[str], Awaitable[None]]
"""Sees to it that the server at an address is started again, if it can. May be called again and again."""
Alive = Callable[[str], bool]
"""Whether the process of the server at an address is there."""


class _NoneLeftError(EngineError):
    """No server has the weights by which a reply is to be answered, and none will have them again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all servers."""

    patience: float
    """Seconds that a request waits while no server answers."""
    probe_seconds: float
    silence: float
    """Seconds without a sign of life after which a server is given up."""
    alive: Alive | None
    restore: Restore | None
    revive: Revive | None


class Serving:
    """The replies under way and the servers that answer them."""

    def __init__(self, replicas: list[Replica], model: str, door: Door, rules: Rules, busy: Meter) -> None:
        self.replicas, self.model, self.door, self.rules = replicas, model, door, rules
        self._busy = busy
        self.wire = Wire()
        self._watch = Watch(self)
        self._tasks: dict[Completion, asyncio.Task[None]] = {}
        self._left = asyncio.Event()
        """Set when a reply has ended, or waits as new ones do."""
        self._wakes = Wakes(WAKE_SECONDS)

    def start(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Begin with a reply."""
        self._watch.start()
        task = asyncio.get_running_loop().create_task(self._serve(completion, stop_ids))
        self._tasks[completion] = task
        task.add_done_callback(lambda ended: self._ended(completion, ended))
        if completion.cancelled:
            task.cancel()

    def cancel(self, completion: Completion) -> None:
        """Break it off, which has its server stop."""
        if completion in self._tasks:
            self._tasks[completion].cancel()

    async def close(self) -> None:
        """Break off everything."""
        await self._watch.close()
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.wire.close()

    def lose(self, replica: Replica, why: str) -> None:
        """Send it nothing more; what is under way or waits there goes on elsewhere."""
        if replica.lost is None:
            logger.warning("vLLM's server is out: %s", why)
        replica.lost, replica.doubted = why, False
        self.door.turn_away(replica)
        now = asyncio.get_running_loop().time()
        for reply in replica.under_way:
            reply.reschedule(now)
        replica.under_way.clear()
        self._watch.tell()

    def distrust(self, url: str, why: str) -> None:
        """The server's weights are not what they should be: it is out until they were restored."""
        for replica in self.replicas:
            if replica.url == url:
                replica.version = replica.started_with = NONE
                self.lose(replica, why)

    def set_version(self, version: int, given: Collection[str]) -> None:
        """The servers at these addresses have the version that answers from now on."""
        self.door.version = version
        for replica in self.replicas:
            if replica.lost is None and replica.url in given:
                replica.version = version
            elif replica.lost is None:
                self.lose(replica, f"{replica.url}: it came back while weights were changed")

    def part(self, gone: Sequence[Replica]) -> None:
        """Others have taken the place of these."""
        for replica in gone:
            self.lose(replica, f"{replica.url}: other servers have taken its place")
        self._watch.tell()

    def _ended(self, completion: Completion, task: asyncio.Task[None]) -> None:
        """Boundary: what went wrong ends this reply, the others go on."""
        del self._tasks[completion]
        if task.cancelled():
            completion.error = GatewayError("the reply was given up: it was cancelled, or its backend closed")
        elif (error := task.exception()) is not None:
            completion.error = error
        self._left.set()
        self._news(completion, at_once=True)

    async def hold(self, last: bool) -> None:
        """Let nothing new in; see `Replicas.hold`."""
        self.door.hold(last=last)
        self._watch.tell()  # who waits for a server looks again, now that the door is shut
        while any(each.request.policy_version is not None for each in self._tasks):
            self._left.clear()
            await self._left.wait()

    async def release(self) -> None:
        """Let in those that waited."""
        self.door.release()
        for replica in self.replicas:
            self.door.admit(replica)

    async def _serve(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """One reply, from the line to its end, at one server after the other."""
        failures = 0
        while completion.finish_reason is None:
            had = len(completion.ids)
            replica = await self._enter(completion.request)
            try:
                await self._sample(replica, completion, stop_ids)
            except LostError:
                failures = 1 if len(completion.ids) > had else failures + 1
                await self._watch.settle(replica)
                if failures >= (TRIES if replica.lost is None else LOSSES):
                    raise
                if replica.lost is None:
                    await asyncio.sleep(AGAIN_SECONDS)
                _end(completion, stop_ids)

    async def _enter(self, request: Request) -> Replica:
        """The server at which the reply has its turn. Raises EngineError if none will answer."""
        while True:
            try:
                replica = await self._choose(request)
            except _NoneLeftError:
                if request.begun:
                    raise
                request.policy_version = None
                self._left.set()
                await self.door.opened()
            else:
                if await self.door.enter(replica, request):
                    if replica.lost is None:
                        return replica
                    self.door.leave(replica)

    async def _sample(self, replica: Replica, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Take from a server what it says, and leave it. Raises LostError if it breaks off or is lost."""
        until_lost = asyncio.timeout(None)
        try:
            if completion.request.policy_version != self.door.version:
                raise _none_left(completion.request)
            body = sampling_body(completion, self.model, stop_ids)
            replica.sent += 1
            with self._busy:
                async with until_lost:
                    replica.under_way.add(until_lost)
                    await self._read(replica, completion, body)
        except TimeoutError as error:
            raise LostError(f"{replica.url} was given up: {replica.lost}") from error
        finally:
            replica.under_way.discard(until_lost)
            self.door.leave(replica)

    async def _read(self, replica: Replica, completion: Completion, body: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time
        async with aclosing(self.wire.stream(replica.url, body)) as pieces:
            async for piece in pieces:
                replica.heard = now()
                if piece.ids or piece.finish_reason:
                    first = not completion.ids
                    _write(completion, piece)
                    self._news(completion, at_once=first or completion.finish_reason is not None)

    async def _choose(self, request: Request) -> Replica:
        """The server to ask, waited for while there is none.

        Raises EngineError, naming each; _NoneLeftError if none will have its weights, or the door is held.
        """
        patience, rollout = self.rules.patience, request.rollout
        replica = choose(self.replicas, rollout)
        if replica is None:
            try:
                async with asyncio.timeout(patience):
                    while (replica := choose(self.replicas, rollout)) is None:
                        if self.door.last or (self.door.held and request.policy_version is None):
                            raise _none_left(request)
                        await self._watch.wait()
            except TimeoutError as error:
                said = "; ".join(f"{each.url}: {each.lost}" for each in self.replicas)
                raise EngineError(
                    f"no server of model {self.model!r} has answered for {patience:g} s ({said}); "
                    "start them again, or give other addresses"
                ) from error
        return replica

    def _news(self, completion: Completion, *, at_once: bool) -> None:
        """Wake the reader, now or soon."""
        if not self._wakes.due:
            asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wakes.send)
        self._wakes.add(completion.request)
        if at_once:
            self._wakes.send()


def _none_left(request: Request) -> _NoneLeftError:
    return _NoneLeftError(
        f"the last server with version {request.policy_version} of the weights was lost in the midst of this "
        "reply, and none will have that version again; ask again"
    )


def _write(completion: Completion, piece: Piece) -> None:
    """Append what came; the ids last, so that they are never the longer ones."""
    completion.logprobs += piece.logprobs
    completion.best += piece.best
    completion.ids += piece.ids
    completion.request.begun = completion.request.begun or bool(piece.ids)
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
