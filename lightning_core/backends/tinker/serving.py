"""The service as the gateway sees it: the same chat requests and deltas as of the local engine.

Prompts are rendered here, and go to the service as token ids; a reply comes back whole, as token ids with
their log-probabilities. These are the model's own, at temperature 1 and over all tokens, and so are those
that an update computes. So a reply that was sampled in another way is answered, and not trained on.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from lightning_core.backends.meter import Meter
from lightning_core.backends.serving.completion import Completion, SamplingOptions, Wakes
from lightning_core.backends.serving.replies import ChatGeneration
from lightning_core.backends.serving.upstream import ChatModel, ChatUpstream
from lightning_core.backends.tinker.service import ServiceSampler
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import EngineError, GatewayError, LightningError, UnsupportedError

SEEDS: Final = 1 << 31
"""Seeds of the service are below this."""


class TinkerEngine:
    """The replies in flight at the service. Methods may be called from any thread."""

    def __init__(self, stop_ids: frozenset[int], most: int, busy: Meter) -> None:
        """At most so many replies are in flight; `busy` counts while one is."""
        self.prompt_tokens = self.sampled_tokens = 0
        """Tokens that the service read and sampled so far, in replies that have come."""
        self._stop_ids, self._most, self._busy = sorted(stop_ids), most, busy
        self._change = threading.Condition()
        self._waiting: deque[Completion] = deque()
        self._running = 0
        self._sampler: ServiceSampler | None = None
        """None while weights change, and once closed: what comes then waits."""
        self._version = 0
        self._closed = False

    def submit(self, completion: Completion) -> None:
        """Put a reply in line."""
        with self._change:
            if self._closed:
                raise GatewayError("the connection to the service was closed; start the backend again")
            self._waiting.append(completion)
        self._begin()

    def hold(self) -> None:
        """Begin nothing new; returns once all that had begun has ended."""
        with self._change:
            self._sampler = None
            self._change.wait_for(lambda: not self._running)

    def release(self, sampler: ServiceSampler, version: int) -> None:
        """Serve these weights from now on, those that wait first."""
        with self._change:
            self._sampler, self._version = sampler, version
        self._begin()

    def close(self) -> None:
        """End what waits with an error; what is in flight ends by itself."""
        with self._change:
            self._closed, self._sampler = True, None
            waiting, self._waiting = self._waiting, deque()
        for completion in waiting:
            _end(completion, _given_up())

    def _begin(self) -> None:
        """Ask for what waits, as far as there is room."""
        while True:
            with self._change:
                sampler = self._sampler
                if sampler is None or not self._waiting or self._running >= self._most:
                    return
                completion = self._waiting.popleft()
                request = completion.request
                if request.policy_version is None:
                    request.policy_version = self._version
                wrong = request.policy_version != self._version
                self._running += 1
                self._busy.__enter__()
            if completion.cancelled or wrong:
                self._leave(completion, _given_up() if completion.cancelled else _changed())
                continue
            try:
                future = sampler.sample(completion, _seed(completion.options), self._stop_ids)
            except EngineError as error:
                self._leave(completion, error)
                continue
            completion.on_cancel = partial(_give_up, future)
            if completion.cancelled:  # since it was looked at, when there was nothing to call yet
                future.cancel()
            future.add_done_callback(partial(self._done, completion, sampler))

    def _done(self, completion: Completion, sampler: ServiceSampler, future: Future[Any]) -> None:
        """Boundary: what went wrong ends this reply, the others go on."""
        error: LightningError | None = None
        if future.cancelled():
            error = _given_up()
        else:
            try:
                reply = sampler.read(future)
                completion.logprobs += reply.logprobs
                completion.ids += reply.ids
                with self._change:
                    self.prompt_tokens += len(completion.prompt_ids)
                    self.sampled_tokens += len(reply.ids)
                completion.finish_reason = "stop" if reply.reason == "stop" else "length"
            except Exception as problem:
                error = problem if isinstance(problem, EngineError) else EngineError(str(problem))
        self._leave(completion, error)
        self._begin()

    def _leave(self, completion: Completion, error: LightningError | None) -> None:
        with self._change:
            self._running -= 1
            self._busy.__exit__()
            self._change.notify_all()
        _end(completion, error)


def _end(completion: Completion, error: LightningError | None) -> None:
    completion.error = error
    wakes = Wakes()
    wakes.add(completion.request)
    wakes.send()


def _give_up(future: Future[Any]) -> None:
    future.cancel()


def _given_up() -> GatewayError:
    return GatewayError("the reply was given up: it was cancelled, or its backend closed")


def _changed() -> EngineError:
    return EngineError("the weights changed between two choices of this request; send it again")


def _seed(options: SamplingOptions) -> int | None:
    if not options.seed:
        return None
    return int.from_bytes(hashlib.blake2b(options.seed.encode(), digest_size=8).digest()) % SEEDS


class TinkerUpstream(ChatUpstream):
    """Serves chat completions from the service (`upstream.Upstream`)."""

    replays_cuts = False

    def __init__(self, model: ChatModel, engine: TinkerEngine, *, seed: int | None) -> None:
        super().__init__(model, engine, seed=seed)

    async def chat(self, request: ChatRequest) -> ChatGeneration:
        """Put the choices in line. Raises ContextLengthError or UnsupportedError before that."""
        shaping = request.shaping
        if request.constraint is not None:
            raise UnsupportedError(
                f"no reply is held to a form ({request.constraint.kind}): a service of Tinker's API samples "
                "without "
                "masks; leave the form, or train with Trainer(constrain=False), or with the local or verl "
                "backend"
            )
        if shaping.penalises or shaping.min_p:
            raise UnsupportedError(
                "a service of Tinker's API samples with temperature, top_p and top_k alone; leave out "
                "penalties, "
                "logit_bias and min_p"
            )
        if request.top_logprobs:
            raise UnsupportedError(
                f"top_logprobs={request.top_logprobs}: a service of Tinker's API gives the log-probability "
                "of the "
                "sampled token alone; leave it out"
            )
        return await super().chat(request)

    def _left_out(self, request: ChatRequest, options: SamplingOptions) -> str | None:
        if request.trained and (options.temperature != 1.0 or options.cuts):
            return (
                "a service of Tinker's API computes log-probabilities at temperature 1 over all tokens; "
                "leave "
                "temperature, top_p and top_k out to have it trained on"
            )
        return None
