"""The engine: one thread that samples for every request at once, step by step.

Each step prefills prompts up to a budget of tokens and decodes one token of every reply under way, in one
forward pass. Replies enter and leave between steps (continuous batching), first come first served.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import torch

from lightning_core.backends.local.cache import Shape
from lightning_core.backends.local.decoder import Decoder
from lightning_core.backends.local.memory import Memory, TokenRun
from lightning_core.backends.local.rows import Rows, begun
from lightning_core.backends.local.sampling import Draws, Sampler, hold, penalise
from lightning_core.backends.serving.completion import Completion, Wakes
from lightning_core.backends.serving.constraints import Matcher
from lightning_core.errors import ConstraintError, EngineError, GatewayError

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
    """Memory for the keys and values of replies in flight. Long ones leave fewer rows, at least one; replies
    that no longer fit go on once others have ended."""
    prefix_bytes: int = 1 << 28
    """Memory for reusable prompt prefixes; 0 turns reuse off."""


class Engine:
    """Samples replies in its own thread. Methods may be called from any thread."""

    def __init__(
        self, decoder: Decoder, shape: Shape, stop_ids: frozenset[int], options: EngineOptions, threads: int
    ) -> None:
        self._decoder, self._stop_ids, self._options, self._threads = decoder, stop_ids, options, threads
        self._device = shape.device
        self._rows = Rows(decoder.memory(shape, options.max_batch, options.slot_bytes, options.prefix_bytes))
        self._inbox: queue.SimpleQueue[Completion | Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Completion] = deque()
        self._sampler: Sampler | None = None
        self._wakes = Wakes()
        self._held = False
        self._when_idle: list[Future[None]] = []
        self._open = True
        self._ended = False
        """Whether the thread takes no more messages; then each sender ends what is left."""
        self._ending = threading.Lock()
        self.policy_version = 0
        self.sampled_tokens = 0
        self.prefill_tokens = 0
        self.steps = 0
        self.most_running = 0
        self._thread = threading.Thread(target=self._run, name="lightning-engine", daemon=True)

    @property
    def memory(self) -> Memory:
        """The memory of its rows."""
        return self._rows.memory

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found in the prefix store."""
        return self._rows.memory.hit_tokens

    @property
    def running(self) -> int:
        """Rows in use."""
        return len(self._rows)

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
        self._put(completion)

    def close(self) -> None:
        """Stop the thread; replies in flight, and all that waits for it, end with an error."""
        if self._thread.is_alive():
            self._inbox.put(self._stop)
            self._thread.join()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in the engine's thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if not self._open:
                    raise _closed()
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._put(run)
        return future

    def hold(self) -> Future[None]:
        """Keep new requests waiting; done once the replies in flight have ended."""
        idle: Future[None] = Future()

        def start() -> None:
            self._held = True
            self._when_idle.append(idle)

        self._put(start)
        return idle

    def release(self) -> None:
        """Serve again what `hold` kept waiting."""

        def go() -> None:
            self._held = False

        self._put(go)

    def refresh(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> Future[None]:
        """Answer with new weights from the next step on; forgets all reusable prefixes. Call while held."""

        def take() -> None:
            with _settled(self._device):
                self._decoder.refresh(weights)
            self._rows.forget()
            self.policy_version = policy_version

        return self.call(take)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with _own_stream(self._device), torch.inference_mode():
            while self._open:
                self._receive()
                if self._open:
                    self._guarded_step()
        self._ended = True
        self._end_all()

    def _put(self, message: Completion | Callable[[], None]) -> None:
        self._inbox.put(message)
        if self._ended:
            self._end_all()

    def _end_all(self) -> None:
        with self._ending:
            with suppress(queue.Empty):
                while True:
                    self._accept(self._inbox.get_nowait())
            self._fail_all(_closed())
            for future in self._when_idle:
                if future.set_running_or_notify_cancel():
                    future.set_exception(_closed())
            self._when_idle = []

    def _stop(self) -> None:
        self._open = False

    def _receive(self) -> None:
        """Take what has arrived; with nothing to do, wait for it."""
        block = not self.running and not self._may_admit()
        try:
            while True:
                self._accept(self._inbox.get(block))
                block = False
        except queue.Empty:
            pass

    def _accept(self, message: Completion | Callable[[], None]) -> None:
        if isinstance(message, Completion):
            self._waiting.append(message)
        else:
            message()

    def _may_admit(self) -> bool:
        if not self._held:
            return bool(self._waiting)
        return any(c.request.policy_version is not None for c in self._waiting)

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:  # boundary: the requests fail, the engine lives
            logger.exception("a step of the engine failed; its requests are ended with this error")
            if self.running:
                self._fail_running(error)
            else:  # one in line is at fault, and would be again
                self._fail_all(error)
        self._wakes.send()
        if self._when_idle and not self.running and not self._may_admit():
            for future in self._when_idle:
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
            self._when_idle = []

    def _step(self) -> None:
        rows, budget = self._rows, self._options.prefill_tokens
        if rows.drop_cancelled():
            self._sampler = None
        if rows.put_back(self._waiting):
            self._sampler = None
        for completion in rows.admit(self._waiting, budget, self.policy_version, held=self._held):
            self._wakes.add(completion.request)
        if not len(rows):
            return
        self.most_running = max(self.most_running, len(rows))
        runs, finished = rows.next_runs(budget)
        logits = self._forward(rows.lengths(), runs)
        self.steps += 1
        self.prefill_tokens += sum(run.count for run in runs)
        rows.promote(finished)
        rows.drop_failed_prompts()
        if finished:
            self._sampler = None
        if rows.decoding:
            self._take(self._draw(logits))

    def _forward(self, lengths: list[int], runs: list[TokenRun]) -> torch.Tensor:
        """Logits (N, V) after every decoding reply and after each prompt that its run completes.

        Where the step fails, its rows are taken one at a time. Those that fail then have an error, and logits
        that are not numbers.
        """
        rows = self._rows
        tokens = [c.ids[-1] for c in rows.decoding]
        keep = list(range(len(tokens)))  # where logits are wanted
        for prompt, run in zip(rows.prompts, runs, strict=True):
            tokens += prompt.ids[run.start : run.start + run.count]
            keep += [len(tokens) - 1] * (prompt.left == 0)
        try:
            return rows.logits(lengths, runs, tokens, keep)
        except Exception:
            logger.exception("a step of the engine failed; its replies are tried one at a time")
        found: list[torch.Tensor | None] = []
        wanted, at = set(keep), 0
        for completion, run in zip(
            [*rows.decoding, *(prompt.completion for prompt in rows.prompts)],
            [*(TokenRun(row, length, 1) for row, length in enumerate(lengths)), *runs],
            strict=True,
        ):
            own, at = tokens[at : at + run.count], at + run.count
            logits = None
            try:
                rows.memory.restore(run.row, begun(completion)[: run.start])
                logits = rows.logits([], [run], own, [run.count - 1] * (at - 1 in wanted))
            except Exception as error:  # boundary: this reply fails, the others go on
                completion.error = error
                self._wakes.add(completion.request)
            if at - 1 in wanted:
                found.append(logits)
        width = next((logits.shape[-1] for logits in found if logits is not None), 1)
        failed = torch.full((1, width), float("nan"), device=self._device)
        return torch.cat([failed, *(failed if logits is None else logits.float() for logits in found)])[1:]

    def _draw(self, logits: torch.Tensor) -> Draws:
        replies = self._rows.decoding
        if self._sampler is None:
            self._sampler = Sampler([c.options for c in replies], self._device)
        return self._sampler.draw(hold(penalise(logits, replies), replies), [c.random() for c in replies])

    def _take(self, draws: Draws) -> None:
        """Append what was drawn, end what is finished, and wake the readers."""
        replies = self._rows.decoding
        all_due = self._wakes.time_for_all(time.monotonic())
        ended, failed = [], 0
        for row, completion in enumerate(replies):
            if completion.error is None and not math.isfinite(draws.logprobs[row]):
                completion.error = EngineError(
                    "the model's logits after this prompt are not finite numbers, so nothing can be sampled; "
                    "look at the weights and at the learning rate"
                )
            if completion.error is None and completion.matcher is not None:
                completion.error = _follow(completion.matcher, draws.ids[row])
            if completion.error is not None:
                failed += 1
                ended.append(row)
                self._wakes.add(completion.request)
                continue
            token, options = draws.ids[row], completion.options
            completion.logprobs.append(draws.logprobs[row])
            if draws.best is not None and options.top_logprobs:
                completion.best.append(draws.best[row][: options.top_logprobs])
            if (kept := draws.kept[row]) is not None:
                completion.kept.append(kept)
            completion.ids.append(token)
            if token in self._stop_ids:
                completion.finish_reason = "stop"
            elif len(completion.ids) >= options.max_tokens:
                completion.finish_reason = "length"
            if completion.finish_reason is not None:
                ended.append(row)
            if all_due or len(completion.ids) == 1 or completion.finish_reason is not None:
                self._wakes.add(completion.request)
        self.sampled_tokens += len(replies) - failed
        for row in reversed(ended):
            self._rows.leave(row)
            self._sampler = None

    def _fail_all(self, error: BaseException) -> None:
        self._fail_running(error)
        while self._waiting:
            self._fail(self._waiting.popleft(), error)
        self._wakes.send()

    def _fail_running(self, error: BaseException) -> None:
        for completion in self._rows.clear():
            self._fail(completion, error)
        self._sampler = None

    def _fail(self, completion: Completion, error: BaseException) -> None:
        completion.error = completion.error or error
        self._wakes.add(completion.request)


def _closed() -> GatewayError:
    return GatewayError("the engine was closed while this request was in flight")


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """Kernels of this thread go before those of an update, not after them in one line."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    with _settled(device), torch.cuda.stream(stream):
        yield


@contextmanager
def _settled(device: torch.device) -> Iterator[None]:
    """Waits for other streams before the block, and for its own work after it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _follow(matcher: Matcher, token_id: int) -> ConstraintError | None:
    """Move a reply's grammar on; returns why that can't be."""
    try:
        matcher.take(token_id)
    except ConstraintError as error:
        return error
    return None
