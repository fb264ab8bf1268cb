"""Replies at several servers: each is one request to one server, in its turn.

A reply whose server breaks off or is lost ends with an error; the app's SDK asks again, or the rollout is
tried again. What waits for its turn at a lost server goes to another one. All of this runs in one event loop;
`replicas.Replicas` is the way to it from other loops and threads.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import islice
from typing import Any

from lightning_core.backends.chat.completion import Completion, Request, Wakes
from lightning_core.backends.meter import Meter
from lightning_core.backends.vllm.client import Client, LostError, Piece, sampling_body
from lightning_core.backends.vllm.pool import Pool, Replica
from lightning_core.errors import EngineError, GatewayError

WAKE_SECONDS = 0.03
"""How often the reader of a running reply is woken."""


class DrainGate:
    """Lets so many replies at a time to each server, in the order in which they came.

    While it is shut, as weights are about to change, no new request goes in. A request of which a choice is
    being answered goes on: its choices are answered by one version. Belongs to one event loop.
    """

    def __init__(self, pool: Pool, most: int) -> None:
        """`most`: replies in flight at one server."""
        self._pool = pool
        self._most = most
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_shut(self) -> bool:
        """Whether new requests wait."""
        return not self._open.is_set()

    def shut(self) -> None:
        """Let nothing new in."""
        self._open.clear()
        self._pool.tell()  # who waits for a server waits for the gate from now on

    def open(self) -> None:
        """Let in what waits."""
        self._open.set()
        for replica in self._pool.replicas:
            self._admit(replica)

    async def opened(self) -> None:
        """Wait until it is open."""
        await self._open.wait()

    async def enter(self, replica: Replica, request: Request) -> bool:
        """Wait for a turn at a server, which then has one more reply in flight. False: it was lost before."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        replica.waiting[turn] = request
        self._admit(replica)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():  # its turn came at the same moment
                self.leave(replica)
            raise
        finally:
            replica.waiting.pop(turn, None)

    def leave(self, replica: Replica) -> None:
        """A reply has ended there, or was broken off: the next one has its turn."""
        replica.running -= 1
        self._admit(replica)

    def _admit(self, replica: Replica) -> None:
        room = max(0, self._most - replica.running)
        ready = (turn for turn, request in replica.waiting.items() if self._may(turn, request))
        for turn in [*islice(ready, room)]:
            request = replica.waiting.pop(turn)
            if request.policy_version is None:
                request.policy_version = self._pool.version
            if not replica.running:
                replica.heard = asyncio.get_running_loop().time()
            replica.running += 1
            turn.set_result(True)

    def _may(self, turn: asyncio.Future[bool], request: Request) -> bool:
        return not turn.done() and (not self.is_shut or request.policy_version is not None)


class Dispatcher:
    """The replies in flight."""

    def __init__(self, pool: Pool, client: Client, gate: DrainGate, model: str, busy: Meter) -> None:
        self.model = model
        self._pool, self._client, self._gate, self._busy = pool, client, gate, busy
        self._tasks: dict[Completion, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        """Set when a reply has ended."""
        self._wakes = Wakes(WAKE_SECONDS)

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

    async def drained(self) -> None:
        """Wait until no request is left that was admitted."""
        while any(each.request.policy_version is not None for each in self._tasks):
            self._ended.clear()
            await self._ended.wait()

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
        replica = await self._enter(completion.request)
        until_lost = asyncio.timeout(None)
        try:
            self._check(completion.request, replica)
            body = sampling_body(completion, self.model, stop_ids)
            replica.sent += 1
            with self._busy:
                async with until_lost:
                    replica.streams.add(until_lost)
                    await self._read(replica, completion, body)
        except TimeoutError as error:
            raise _broken(str(replica.lost)) from error
        except LostError as error:
            self._pool.doubt(replica)
            raise _broken(str(error)) from error
        finally:
            replica.streams.discard(until_lost)
            self._gate.leave(replica)

    async def _enter(self, request: Request) -> Replica:
        """The server at which the reply has its turn. Raises EngineError if none answers in time."""
        while True:
            if request.policy_version is None:
                await self._gate.opened()
            replica = self._pool.choose(request.rollout)
            if replica is not None and await self._gate.enter(replica, request):
                return replica
            if request.policy_version is not None:
                raise _broken("its server was lost before all choices of the request were answered")
            if replica is None:
                await self._wait_for_server()

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

    def _check(self, request: Request, replica: Replica) -> None:
        if replica.lost is not None:
            raise LostError(replica.lost)
        if request.policy_version != self._pool.version:
            raise EngineError("the weights changed between two choices of this request; send it again")

    async def _read(self, replica: Replica, completion: Completion, body: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time
        async with aclosing(self._client.stream(replica.url, body)) as pieces:
            async for piece in pieces:
                replica.heard = now()
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
    """Append what came; the ids last, so that they are never the longer ones."""
    completion.logprobs += piece.logprobs
    completion.best += piece.best
    completion.ids += piece.ids
    if piece.finish_reason in ("stop", "length"):
        completion.finish_reason = piece.finish_reason
    elif piece.finish_reason is not None:  # "abort": a server that shuts down, or was told to drop it
        raise LostError(f"the server ended it with {piece.finish_reason!r}")
