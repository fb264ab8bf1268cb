"""Replies being sampled: written by the engine's thread, read by their owner's event loop.

An engine is any object with `submit(completion)`: it appends to the reply and wakes its reader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightning_core.dialects.upstream import PLAIN, Shaping

if TYPE_CHECKING:
    from lightning_core.backends.serving.constraints import Matcher


WAKE_SECONDS = 0.03
"""Between wake-ups of the readers of replies that go on; finished ones wake at once."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How a reply is sampled."""

    max_tokens: int
    temperature: float = 1.0
    """0.0 is greedy."""
    top_p: float = 1.0
    shaping: Shaping = PLAIN
    records: bool = False
    """Whether the tokens that were left to sample from are kept, where some are cut off."""
    top_logprobs: int = 0
    together: int = 1
    """Tokens that an engine may hand over together."""
    seed: str = ""
    """Equal seeds and prompts give equal replies under equal weights."""

    @property
    def cuts(self) -> bool:
        """Whether tokens are cut off."""
        cuts = self.top_p < 1.0 or self.shaping.top_k > 0 or self.shaping.min_p > 0.0
        return cuts and self.temperature > 0.0


class CompletionRequest:
    """The part that all choices of one request share: the weights that answer and the reader to wake.

    Must be made on the event loop that reads it.
    """

    __slots__ = ("_waiter", "loop", "policy_version", "rollout")

    def __init__(self, rollout: str | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.rollout = rollout
        """The rollout that it belongs to, if any is known."""
        self.policy_version: int | None = None
        """Set when the first choice is admitted; the others then wait for no update, so versions never mix.
        """
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Sleep until the engine has news. Look before you wait: news may have come earlier."""
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """On the event loop: end `wait`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Completion:
    """One reply. The engine only appends; the reader takes what is new to it, so no lock is needed."""

    __slots__ = (
        "best", "cached", "cancelled", "error", "finish_reason", "ids", "kept", "logprobs",
        "matcher", "on_cancel", "options", "prompt_ids", "random", "request",
    )  # fmt: skip

    def __init__(
        self,
        prompt_ids: list[int],
        options: SamplingOptions,
        request: CompletionRequest,
        matcher: Matcher | None = None,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.options = options
        self.request = request
        self.matcher = matcher
        """Says which tokens may come next; None: all. Only the engine's thread moves it on."""
        self.random = random.Random(options.seed).random
        self.ids: list[int] = []
        """Appended to after `logprobs`, `best` and `kept`, so that they are never the shorter ones."""
        self.logprobs: list[float] = []
        self.best: list[list[tuple[int, float]]] = []
        """The most probable alternatives for each id, if they were asked for."""
        self.cached = 0
        """Tokens of the prompt that the engine had computed before."""
        self.kept: list[bytes] = []
        """The tokens that were left to sample each id from, if they are kept (`Options.records`)."""
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.on_cancel: Callable[[], None] | None = None
        """How an engine that does not look between steps learns of it."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def cancel(self) -> None:
        """Let the engine stop sampling it; a reply that has ended is left alone."""
        self.cancelled = True
        if self.on_cancel is not None and not self.finished:
            self.on_cancel()


def wake_all(requests: Iterable[CompletionRequest]) -> None:
    """On their common event loop: wake each request's reader."""
    for request in requests:
        request.wake()


@dataclass(slots=True)
class Wakes:
    """Wake-ups collected over steps, so that a reader is woken every few milliseconds, not for each token.

    Every wake-up makes the reader's loop run Python, which the engine then waits for at the interpreter lock.
    """

    _last: float = 0.0
    _due: dict[asyncio.AbstractEventLoop, list[CompletionRequest]] = field(default_factory=dict)

    @property
    def due(self) -> bool:
        """Whether anybody waits to be woken."""
        return bool(self._due)

    def add(self, request: CompletionRequest) -> None:
        self._due.setdefault(request.loop, []).append(request)

    def time_for_all(self, now: float) -> bool:
        """Whether replies that go on should be added too."""
        if now - self._last < WAKE_SECONDS:
            return False
        self._last = now
        return True

    def send(self) -> None:
        """Wake the readers; one whose loop was closed has gone, and so has its interest."""
        for loop, requests in self._due.items():
            with suppress(RuntimeError):  # a closed loop refuses
                loop.call_soon_threadsafe(wake_all, requests)
        self._due = {}
