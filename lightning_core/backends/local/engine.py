"""The engine: one thread that samples for every request at once, step by step.

Each step prefills prompts up to a budget of tokens and decodes one token of every reply under way, in one
forward pass. Replies enter and leave between steps (continuous batching), first come first served. Rows 0 to
B-1 decode; at most one more row holds a prompt that did not fit the last step's budget, so decoding reads one
contiguous block.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import torch

from ...errors import GatewayError
from .cache import Prefixes, Shape, Slots
from .completion import Completion, Wakes
from .decoder import Decoder
from .plan import Run, StepPlan
from .sampling import Draws, Sampler

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of the engine."""

    max_batch: int = 64
    """Replies sampled at the same time; more wait in line."""
    prefill_tokens: int = 512
    """Prompt tokens in one step: how long a decoding reply waits for others' prompts."""
    slot_bytes: int = 1 << 30
    """Rows are only taken while their keys and values stay below this."""
    prefix_bytes: int = 1 << 28
    """Memory for reusable prompt prefixes; 0 turns reuse off."""
    wake_seconds: float = 0.01
    """How often the reader of a running reply is woken."""


@dataclass(slots=True)
class _Prompt:
    """A row's prompt and how much of it is in the row."""

    completion: Completion
    row: int
    done: int


class Engine:
    """Samples replies in its own thread. Methods may be called from any thread."""

    def __init__(
        self, decoder: Decoder, shape: Shape, stop_ids: frozenset[int], options: EngineOptions, threads: int
    ) -> None:
        self._decoder, self._stop_ids, self._options, self._threads = decoder, stop_ids, options, threads
        self._slots = Slots(shape, options.max_batch)
        self._prefixes = Prefixes(shape, max_bytes=options.prefix_bytes)
        self._inbox: queue.SimpleQueue[Completion | Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[Completion] = deque()
        self._decoding: list[Completion] = []
        self._partial: _Prompt | None = None
        self._sampler: Sampler | None = None
        self._wakes = Wakes(options.wake_seconds)
        self._held = False
        self._when_idle: list[Future[None]] = []
        self._open = True
        self.policy_version = 0
        self.sampled_tokens = 0
        self.prefill_tokens = 0
        self.steps = 0
        self._thread = threading.Thread(target=self._run, name="lightning-engine", daemon=True)

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found in the prefix store."""
        return self._prefixes.hit_tokens

    @property
    def running(self) -> int:
        """Rows in use."""
        return len(self._decoding) + (self._partial is not None)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._waiting)

    def start(self) -> None:
        self._thread.start()

    def submit(self, completion: Completion) -> None:
        """Put a reply in line. Raises GatewayError unless the engine runs."""
        if not self._thread.is_alive():
            raise GatewayError("the engine is not running; start the backend before sending it requests")
        self._inbox.put(completion)

    def close(self) -> None:
        """Stop the thread; replies under way end with an error."""
        if self._thread.is_alive():
            self._inbox.put(self._stop)
            self._thread.join()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in the engine's thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(run)
        return future

    def hold(self) -> Future[None]:
        """Keep new requests waiting; done once the replies under way have ended."""
        idle: Future[None] = Future()

        def start() -> None:
            self._held = True
            self._when_idle.append(idle)

        self._inbox.put(start)
        return idle

    def release(self) -> None:
        """Serve again what `hold` kept waiting."""

        def go() -> None:
            self._held = False

        self._inbox.put(go)

    def refresh(self, weights: dict[str, torch.Tensor], policy_version: int) -> Future[None]:
        """Answer with new weights from the next step on; forgets all reusable prefixes. Call while held."""

        def take() -> None:
            self._decoder.refresh(weights)
            self._prefixes.clear()
            self.policy_version = policy_version

        return self.call(take)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while self._open:
                self._receive()
                if self._open:
                    self._guarded_step()
        self._fail_all(GatewayError("the engine was closed while this request was under way"))

    def _stop(self) -> None:
        self._open = False

    def _receive(self) -> None:
        """Take what has arrived; with nothing to do, wait for it."""
        block = not self.running and not self._may_admit()
        try:
            while True:
                message = self._inbox.get(block)
                block = False
                if isinstance(message, Completion):
                    self._waiting.append(message)
                elif message is not None:
                    message()
        except queue.Empty:
            pass

    def _may_admit(self) -> bool:
        if not self._held:
            return bool(self._waiting)
        return any(c.request.policy_version is not None for c in self._waiting)

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:  # boundary: the requests fail, the engine lives
            logger.exception("a step of the engine failed; its requests are ended with this error")
            self._fail_all(error)
        self._wakes.send()
        if self._when_idle and not self.running and not self._may_admit():
            for future in self._when_idle:
                future.set_result(None)
            self._when_idle = []

    def _step(self) -> None:
        self._drop_cancelled()
        prompts = self._admit()
        if not prompts and not self._decoding:
            return
        runs, finished = self._runs(prompts)
        lengths = [len(c.prompt_ids) + len(c.ids) - 1 for c in self._decoding]
        self._slots.reserve(max([n + 1 for n in lengths] + [r.start + r.count for r in runs]))
        plan = StepPlan(self._slots, lengths, runs)
        tokens = [c.ids[-1] for c in self._decoding]
        keep = list(range(len(tokens)))
        for prompt, run in zip(prompts, runs, strict=True):
            tokens += prompt.completion.prompt_ids[run.start : run.start + run.count]
            if prompt in finished:
                keep.append(len(tokens) - 1)
        device = self._slots.shape.device
        logits = self._decoder.logits(
            torch.tensor(tokens, device=device), plan.positions, plan, torch.tensor(keep, device=device)
        )
        self.steps += 1
        self.prefill_tokens += sum(run.count for run in runs)
        self._partial = prompts[-1] if len(finished) < len(prompts) else None
        self._promote(finished)
        if self._decoding:
            self._take(self._draw(logits))

    def _runs(self, prompts: list[_Prompt]) -> tuple[list[Run], list[_Prompt]]:
        """This step's prompt tokens within the budget, and the prompts that it completes."""
        left, runs, finished = self._options.prefill_tokens, [], []
        for prompt in prompts:
            count = min(left, len(prompt.completion.prompt_ids) - prompt.done)
            runs.append(Run(prompt.row, prompt.done, count))
            left -= count
            prompt.done += count
            if prompt.done == len(prompt.completion.prompt_ids):
                finished.append(prompt)
        return runs, finished

    def _admit(self) -> list[_Prompt]:
        """Prompts for this step, in order of arrival: the one left over, then new ones while budget lasts.

        A prompt whose next block is being computed by another of this step waits for the next step and finds
        it.
        """
        prompts = [self._partial] if self._partial else []
        left = self._options.prefill_tokens - sum(len(p.completion.prompt_ids) - p.done for p in prompts)
        computing = {self._missing(p.completion) for p in prompts} - {None}
        deferred: list[Completion] = []
        limit = self._row_limit()
        while left > 0 and len(self._decoding) + len(prompts) < limit and self._waiting:
            completion = self._waiting.popleft()
            if completion.cancelled:
                continue
            if self._held and completion.request.policy_version is None:
                deferred.append(completion)
                continue
            found, missing = self._prefixes.find(completion.prompt_ids)
            if missing in computing:
                deferred.append(completion)
                continue
            if missing is not None:
                computing.add(missing)
            row = len(self._decoding) + len(prompts)
            self._slots.reserve(len(completion.prompt_ids) + 1)
            done = self._prefixes.load(found, self._slots, row)
            if completion.request.policy_version is None:
                completion.request.policy_version = self.policy_version
            prompts.append(_Prompt(completion, row, done))
            left -= len(completion.prompt_ids) - done
        self._waiting.extendleft(reversed(deferred))
        return prompts

    def _missing(self, completion: Completion) -> tuple[int, ...] | None:
        return self._prefixes.find(completion.prompt_ids)[1]

    def _row_limit(self) -> int:
        row_bytes = self._slots.capacity * self._slots.shape.token_bytes
        return max(1, min(self._options.max_batch, self._options.slot_bytes // row_bytes))

    def _promote(self, finished: list[_Prompt]) -> None:
        """Prompts that are complete start decoding; their rows follow the decoding ones in order."""
        for prompt in finished:
            self._prefixes.save(prompt.completion.prompt_ids, self._slots, prompt.row)
            self._decoding.append(prompt.completion)
            self._sampler = None

    def _draw(self, logits: torch.Tensor) -> Draws:
        if self._sampler is None:
            options = [c.options for c in self._decoding]
            self._sampler = Sampler(
                [o.temperature for o in options],
                [o.top_p for o in options],
                [o.top_logprobs for o in options],
                self._slots.shape.device,
            )
        return self._sampler.draw(logits, [c.random() for c in self._decoding])

    def _take(self, draws: Draws) -> None:
        """Append what was drawn, end what is finished, and wake the readers."""
        all_due = self._wakes.time_for_all(time.monotonic())
        ended = []
        for row, completion in enumerate(self._decoding):
            token = draws.ids[row]
            completion.logprobs.append(draws.logprobs[row])
            if draws.best is not None and completion.options.top_logprobs:
                completion.best.append(draws.best[row][: completion.options.top_logprobs])
            completion.ids.append(token)
            if token in self._stop_ids:
                completion.finish_reason = "stop"
            elif len(completion.ids) >= completion.options.max_tokens:
                completion.finish_reason = "length"
            else:
                if all_due or len(completion.ids) == 1:
                    self._wakes.add(completion.request)
                continue
            ended.append(row)
            self._wakes.add(completion.request)
        self.sampled_tokens += len(self._decoding)
        for row in reversed(ended):
            self._leave(row)

    def _leave(self, row: int) -> None:
        """Free a decoding row: keep its blocks for a next turn, and close the gap with the last rows."""
        completion = self._decoding[row]
        ids = completion.prompt_ids + completion.ids[:-1]  # the last id was never run through the model
        self._prefixes.save(ids, self._slots, row)
        last = len(self._decoding) - 1
        if row != last:
            moved = self._decoding[last]
            self._slots.move(last, row, len(moved.prompt_ids) + len(moved.ids) - 1)
            self._decoding[row] = moved
        self._decoding.pop()
        if self._partial is not None:
            self._slots.move(self._partial.row, last, self._partial.done)
            self._partial.row = last
        self._sampler = None

    def _drop_cancelled(self) -> None:
        for row in reversed(range(len(self._decoding))):
            if self._decoding[row].cancelled:
                self._leave(row)
        if self._partial is not None and self._partial.completion.cancelled:
            self._partial = None

    def _fail_all(self, error: BaseException) -> None:
        partial = [self._partial.completion] if self._partial else []
        for completion in [*self._decoding, *partial, *self._waiting]:
            completion.error = error
            self._wakes.add(completion.request)
        self._decoding, self._partial, self._sampler = [], None, None
        self._waiting.clear()
        self._wakes.send()
