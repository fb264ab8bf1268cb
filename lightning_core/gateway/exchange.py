"""One call on its way through the gateway: sampled, watched, recorded once.

The engine runs in a task of its own, so that whatever ends the call early (the client has left, a
retry has taken its place, the gateway stops) ends it in one way: that task is cancelled, which
closes the generation and frees the engine's slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from lightning_core.dialects.upstream import ChatRequest, Delta, Generation
from lightning_core.errors import ApiError, GatewayError, LeaseLostError, NotFoundError
from lightning_core.gateway.access import Caller
from lightning_core.gateway.errors import api_error_of
from lightning_core.gateway.recording import Recording
from lightning_core.records.linking import under_own_id
from lightning_core.records.types import Call, CallStatus
from lightning_core.stores.base import Store

log = logging.getLogger(__name__)

Key = tuple[str | None, int | None, str]
Begin = Callable[[ChatRequest], Awaitable[Generation]]
_MOST_ENDED = 4096
"""Attempts that are remembered to have ended."""


class Exchange:
    """A running call. Use as: `start()`, `await finished()`, `await record()`, answer."""

    def __init__(
        self, recording: Recording, begin: Begin, request: ChatRequest, fresh: asyncio.Event
    ) -> None:
        """`begin` starts the completion. `fresh` is set whenever there is something new; all calls of a
        request share it."""
        self.recording = recording
        self._request = request
        self._begin = begin
        self._deltas: list[Delta] = []
        self._fresh = fresh
        self._task: asyncio.Task[None] | None = None
        self._aborted: ApiError | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._task = asyncio.create_task(self._sample())
        self._task.add_done_callback(lambda _: self._fresh.set())

    def abort(self, reason: ApiError) -> None:
        """End the call early, unless it has ended already."""
        if self._task is not None and self._aborted is None and self._task.cancel():
            self._aborted = reason

    async def finished(self) -> None:
        """Wait until nothing more will be sampled."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    @property
    def ended(self) -> bool:
        """Whether nothing more will be sampled."""
        return self._task is not None and self._task.done()

    def take(self) -> list[Delta]:
        """The tokens sampled since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def failure(self) -> ApiError | None:
        """Why there is no complete reply; None if there is one. Known once finished."""
        if self._aborted is not None:
            return self._aborted
        if self._task is None or self._task.cancelled():
            return stopped()
        error = self._task.exception()
        return None if error is None else api_error_of(error)

    async def _sample(self) -> None:
        generation = await self._begin(self._request)
        sampled, streamed = self.recording.sampled, self.recording.request.stream
        try:
            sampled.prompt_ids, sampled.grammar = list(generation.prompt_ids), generation.grammar
            async for delta in generation:
                sampled.policy_version = generation.policy_version
                self._check_version(generation.policy_version)
                sampled.add(delta)
                if streamed:
                    self._deltas.append(delta)
                    self._fresh.set()
        finally:
            await generation.aclose()
        sampled.check_finished()

    def _check_version(self, answering: int | None) -> None:
        """Answered by the version that was asked for, or not at all: whatever the engine is."""
        asked = self._request.policy_version
        if asked not in (None, answering):
            raise GatewayError(f"version {asked} of the weights was asked for, and {answering} answered")


async def next_deltas(exchanges: Sequence[Exchange], fresh: asyncio.Event) -> list[Delta]:
    """The tokens that the calls of a request sampled since the last time, as soon as there are any.

    Choices are numbered through, in the order of the calls. An empty list means the end.
    """
    while not any(taken := [exchange.take() for exchange in exchanges]):
        if all(exchange.ended for exchange in exchanges):
            return []
        fresh.clear()
        await fresh.wait()
    counts = [len(exchange.recording.sampled.choices) for exchange in exchanges]
    return [
        replace(delta, choice=first + delta.choice) if first else delta
        for first, deltas in zip(accumulate(counts, initial=0), taken, strict=False)
        for delta in deltas
    ]


class Exchanges:
    """The calls on their way, and the store that they end in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running: dict[Key, Exchange] = {}
        self.begun = 0
        """Calls since the gateway started."""
        self._ended: OrderedDict[tuple[str | None, int | None], str] = OrderedDict()
        """The last attempts that have ended with calls on their way, and the store's words for it."""

    def check(self, caller: Caller) -> None:
        """Raise ApiError if the caller's attempt is known to have ended: its reply would be withheld."""
        ended = self._ended.get(caller.key[:2])
        if ended is not None:
            raise attempt_ended(ended)

    def __len__(self) -> int:
        return len(self._running)

    def start(self, exchange: Exchange) -> None:
        """Begin it. An earlier try of the same call ends here, unrecorded: its client has given it up."""
        key = exchange.recording.caller.key
        older = self._running.get(key)
        if older is not None:
            older.abort(superseded(key[2]))
        self._running[key] = exchange
        self.begun += 1
        exchange.start()

    async def record(self, exchange: Exchange) -> ApiError | None:
        """Store the finished call, once; afterwards its reply may be given. Returns why there is none.

        A reply that can't be stored is not given: its app sees an error instead. Nor is one whose attempt has
        ended meanwhile; it is stored as cancelled, so that it is never trained on.
        """
        recording, failure = exchange.recording, exchange.failure
        key = recording.caller.key
        if self._running.get(key) is not exchange:
            return failure or superseded(key[2])
        try:
            if failure is None:
                failure = await self._complete(recording)
            else:
                await self._store.add_call(recording.call(_status(failure), str(failure)))
        except Exception as error:
            log.exception("call %s could not be recorded", key[2])
            return failure or unrecorded(error)
        finally:
            if self._running.get(key) is exchange:
                del self._running[key]
        return failure

    async def _complete(self, recording: Recording) -> ApiError | None:
        """Store a call that was sampled to its end; returns why its reply may not be given."""
        caller = recording.caller
        try:
            await self._store.add_call(
                recording.call("completed", None), running=caller.rollout_id is not None
            )
        except NotFoundError as error:
            return ApiError(f"{error}, so the reply is withheld", status=404, code="no_rollout")
        except LeaseLostError as error:
            ended = str(error)
        else:
            return None
        self._ended[caller.key[:2]] = ended
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)
        await self._store.add_call(under_own_id(recording.call("cancelled", ended)))
        return attempt_ended(ended)

    async def refuse(self, call: Call) -> None:
        """Store a call that was refused: an app that hides the error would leave no trace of it."""
        try:
            await self._store.add_call(call)
        except Exception:  # boundary: the app gets its refusal all the same
            log.exception("the refused call %s could not be recorded", call.id)

    def abort(self) -> None:
        """End all calls early; they are recorded as cancelled."""
        for exchange in tuple(self._running.values()):
            exchange.abort(stopped())


def _status(failure: ApiError | None) -> CallStatus:
    if failure is None:
        return "completed"
    if failure.code == "cancelled":
        return "cancelled"
    return "refused" if failure.status < 500 else "failed"


def stopped() -> ApiError:
    """The gateway stops before the call has ended."""
    return ApiError("the gateway was stopped", status=503, code="cancelled", kind="server_error")


def disconnected() -> ApiError:
    """The client did not wait for the reply."""
    return ApiError("the client disconnected", code="cancelled")


def attempt_ended(words: str) -> ApiError:
    """The caller's attempt is over. 410 and not 409, as OpenAI's SDK sends again what it gets a 409 for."""
    return ApiError(words, status=410, code="attempt_ended")


def superseded(call_id: str) -> ApiError:
    """A newer request has the same call id. 409, which SDKs send again: on a busy machine a try that its
    client gave up may be read last, and the one that waits must not fail for it."""
    words = f"call {call_id!r} was sent again; only the newer request is answered"
    return ApiError(words, status=409, code="superseded")


def unrecorded(error: Exception) -> ApiError:
    """A reply that could not be stored, and is therefore not given."""
    return ApiError(
        f"the reply could not be recorded, so it is withheld: {error}",
        status=503,
        code="store_failed",
        kind="server_error",
    )
