"""Replies at several servers: where each is sampled, and how it goes on if its server goes.

All of this runs in one event loop; `replicas.Replicas` is the door to it from other loops and threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass

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


class _NoneLeftError(EngineError):
    """No server has the weights by which a reply is to be answered, and none will have them again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all servers."""

    patience: float
    """Seconds that a request waits while no server answers."""
    probe_seconds: float
    restore: Restore | None
    revive: Revive | None


class Serving:
    """The replies under way and the servers that answer them."""

    def __init__(self, replicas: list[Replica], model: str, version: int, rules: Rules, busy: Meter) -> None:
        self.replicas, self.model, self.version, self.rules = replicas, model, version, rules
        self._busy = busy
        self.wire = Wire()
        self.door = Door()
        self._watch = Watch(self)
        self._tasks: dict[Completion, asyncio.Task[None]] = {}
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
        """Send it nothing more; what is under way there goes on elsewhere."""
        if replica.lost is None:
            logger.warning("vLLM's server is out: %s", why)
        replica.lost = why
        for response in tuple(replica.responses):
            response.close()

    def distrust(self, url: str, why: str) -> None:
        """The server's weights are not what they should be: it is out until they were restored."""
        for replica in self.replicas:
            if replica.url == url:
                replica.version = replica.started_with = NONE
                self.lose(replica, why)

    def set_version(self, version: int, given: Collection[str]) -> None:
        """The servers at these addresses have the version that answers from now on."""
        self.version = version
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
        self._news(completion, at_once=True)

    async def hold(self, last: bool) -> None:
        """Shut the door; see `Replicas.hold`."""
        self._watch.tell()  # who waits for a server that will not come looks again, once the door is shut
        await self.door.hold(last=last)

    async def _serve(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """One reply, from the line to its end."""
        request = completion.request
        while completion.finish_reason is None:
            try:
                async with self.door.inside(request):
                    self._set_version(request)
                    await self._answer(completion, stop_ids)
            except _NoneLeftError:
                if request.begun:
                    raise
                await self.door.opened()
                if not request.begun:  # nor by another choice since
                    request.policy_version = None

    def _set_version(self, request: Request) -> None:
        """What is sampled of it from now on is by the present weights."""
        if request.begun and request.policy_version != self.version:
            raise _none_left(request)
        request.policy_version = self.version

    async def _answer(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """One reply, at one server after the other. Raises _NoneLeftError if no server has its weights."""
        failures = 0
        while completion.finish_reason is None:
            had = len(completion.ids)
            replica = await self._choose(completion.request)
            try:
                await self._sample(replica, completion, stop_ids)
            except LostError as error:
                failures = 1 if len(completion.ids) > had else failures + 1
                ailment = await self._ailment(replica)
                if ailment is not None:
                    self.lose(replica, f"{error}; {ailment}")
                if failures >= (TRIES if ailment is None else LOSSES):
                    raise
                if ailment is None:
                    await asyncio.sleep(AGAIN_SECONDS)
                _end(completion, stop_ids)

    async def _sample(self, replica: Replica, completion: Completion, stop_ids: frozenset[int]) -> None:
        body = sampling_body(completion, self.model, stop_ids)
        now = asyncio.get_running_loop().time
        replica.sent += 1
        replica.running += 1
        replica.heard = now()
        try:
            with self._busy:
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
        if ailment is None and replica.born is not None:
            born = await self.wire.born(replica.url)
            if born is not None and born != replica.born:
                return "it was started anew"
        return ailment

    async def _choose(self, request: Request) -> Replica:
        """The server to ask, waited for while there is none. Raises EngineError, naming each."""
        patience, rollout = self.rules.patience, request.rollout
        replica = choose(self.replicas, rollout)
        if replica is None:
            try:
                async with asyncio.timeout(patience):
                    while (replica := choose(self.replicas, rollout)) is None:
                        if self.door.last:
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
