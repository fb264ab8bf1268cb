"""An engine as the gateway sees it: chat requests in, deltas out (`upstream.Upstream`)."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol
from weakref import WeakValueDictionary

from lightning_core.backends.serving.channels import Channels
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.serving.constraints import Composed, Grammars, MaskMeter, Matcher
from lightning_core.backends.serving.prompts import Prompts, make_room
from lightning_core.backends.serving.replies import (
    ChatGeneration,
    ParsedChoice,
    Parts,
    TextStream,
    hidden_ids,
)
from lightning_core.backends.serving.speech import Speech
from lightning_core.backends.serving.trials import LINES
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ContextLengthError, UnsupportedError
from lightning_core.records.types import Demonstration

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MANY_PROMPTS = 1 << 16
"""Prompts whose answers are counted, the last ones."""
TOGETHER = 128
"""Tokens that come together where the app reads the reply whole; the record of a cut one may lack so many."""
_TAIL = 16
"""Tokens of a prompt's end in which a tag is looked for."""
MANY_MESSAGES = 1000
"""Messages that make a conversation a long one: others should not wait for its template."""


class ReplyEngine(Protocol):
    """The part of an engine that samples."""

    def submit(self, completion: Completion) -> None:
        """Put a reply in line; it is written to `completion` from now on."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model as far as talking to it goes."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    context: int
    """Longest prompt plus completion, in tokens."""
    stop_ids: frozenset[int]
    """Token ids that end a reply."""
    vocabulary: int
    """Token ids go from 0 to one less."""
    longest: int = 0
    """The longest context that the model was made for, in tokens; 0: unknown."""


class ChatUpstream:
    """Serves chat completions from an engine."""

    replays_cuts: ClassVar[bool] = True
    """Whether the engine says which tokens were left where some were cut off, so that an update can."""

    def __init__(self, model: ChatModel, engine: ReplyEngine, *, seed: int | None = 0) -> None:
        """`seed` is that of requests with neither a seed nor an origin. None: the engine draws its own
        numbers for all requests without a seed."""
        self.model, self.model_name = model, model.name
        self._engine = engine
        self._tokenizer = model.tokenizer.backend_tokenizer
        self._speech = Speech(model.tokenizer)
        self._hidden = hidden_ids(model.tokenizer, model.stop_ids, self._speech.tags)
        self._texts: dict[int, str] = {}
        """The texts of single tokens, as far as they were sampled."""
        self.prompts = Prompts(model.tokenizer, model.name, model.vocabulary, model.longest)
        self.grammars = Grammars(model.tokenizer, model.vocabulary)
        # their threads end when this object goes
        self._short = ThreadPoolExecutor(2, "lightning-prompts")
        self._long = ThreadPoolExecutor(1, "lightning-long-prompts")
        self._ready = ThreadPoolExecutor(1, "lightning-constraints")
        self._trying = ThreadPoolExecutor(LINES, "lightning-trials")
        self._turns: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()
        self._seeds = None if seed is None else random.Random(seed)
        self._drawn: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        """How often each prompt of an origin was answered."""

    async def chat(self, request: ChatRequest) -> ChatGeneration:
        """Put the choices in line. Raises ContextLengthError or UnsupportedError before that."""
        if request.tools:
            self._speech.check()
        self._check_bias(request)
        grammar, matchers = await self._grammar(request)
        ids, as_text = await self._prompt(request)
        seed = self._seed(request, ids)
        room = self._room(len(ids), request.max_tokens)
        shared = CompletionRequest(rollout=request.attempt[0] if request.attempt else None)
        choices = []
        for index in range(request.n):
            options = SamplingOptions(
                max_tokens=room,
                temperature=request.temperature,
                top_p=request.top_p,
                shaping=request.shaping,
                records=request.trained and self.replays_cuts,
                top_logprobs=request.top_logprobs,
                together=TOGETHER if request.whole and not _ends_here(request) else 1,
                seed="" if seed is None else f"{seed}/{index}",
            )
            completion = Completion(ids, options, shared, matchers[index])
            text = TextStream(self._tokenizer, self._hidden, self._texts)
            choices.append(ParsedChoice(index, completion, text, request, self._parts(request, ids)))
            choices[-1].left_out, choices[-1].as_text = self._left_out(request, options), as_text
            self._engine.submit(completion)
        return ChatGeneration(ids, shared, choices, grammar)

    def _left_out(self, request: ChatRequest, options: SamplingOptions) -> str | None:
        """Why an update can't compute the log-probabilities of this request's replies; None if it can."""
        if not request.trained:
            return None
        if request.shaping.penalises:
            return "an update computes no penalties and no logit_bias; leave them out to have it trained on"
        if options.cuts and not options.records:
            return (
                "vLLM's servers do not say which tokens top_p, top_k and min_p left; leave them out to have "
                "it trained on"
            )
        return None

    def _check_bias(self, request: ChatRequest) -> None:
        for token, _ in request.shaping.bias:
            if token >= self.model.vocabulary:
                last = self.model.vocabulary - 1
                raise UnsupportedError(f"logit_bias names the token id {token}; the model's go up to {last}")

    def _parts(self, request: ChatRequest, prompt: list[int]) -> Parts | Channels | None:
        end = self._tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False)
        return self._speech.parts(request, str(end))

    def _seed(self, request: ChatRequest, prompt: list[int]) -> int | str | None:
        if request.seed is not None or self._seeds is None:
            return request.seed
        if request.origin is None:
            return self._seeds.getrandbits(64)
        digest = hashlib.blake2b(array("I", prompt).tobytes(), digest_size=16).digest()
        earlier = self._drawn.pop((request.origin, digest), 0)
        self._drawn[request.origin, digest] = earlier + 1
        if len(self._drawn) > MANY_PROMPTS:
            self._drawn.popitem(last=False)
        return f"{request.origin}/{digest.hex()}/{earlier}"

    async def _grammar(self, request: ChatRequest) -> tuple[str | None, list[Matcher | None]]:
        """Returns the grammar of the replies, and its beginning for each, made while the event loop goes on
        streaming. No prompt waits for it, and no grammar that is ready for one that is not."""
        if request.constraint is None:
            return None, [None] * request.n
        run = asyncio.get_running_loop().run_in_executor
        composed = await run(self._ready, self.grammars.compose, request)
        assert composed is not None
        if not self.grammars.is_ready(composed.grammar):
            await self._admit(composed, request.attempt)
        return composed.grammar, await run(self._ready, self._starts, composed.grammar, request.n)

    async def _admit(self, composed: Composed, attempt: tuple[str, int] | None) -> None:
        """Try a grammar, of each attempt one at a time. Where the request is cancelled, so is the trial."""
        stop = threading.Event()
        turn = self._turns.setdefault(attempt, asyncio.Lock()) if attempt else nullcontext()
        async with turn:
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._trying, self.grammars.admit, composed, stop
                )
            finally:
                stop.set()

    def _starts(self, grammar: str, many: int) -> list[Matcher | None]:
        meter = MaskMeter()
        return [self.grammars.start(grammar, meter) for _ in range(many)]

    async def _prompt(self, request: ChatRequest) -> tuple[list[int], list[str] | None]:
        """Token ids of the prompt, and the tokens that stand in it as text. The event loop goes on streaming
        meanwhile. Long prompts wait for one another, and short ones for none of them."""
        loop, context = asyncio.get_running_loop(), self.model.context
        many = len(request.messages) + len(request.tools or ()) > MANY_MESSAGES
        made, as_text = await loop.run_in_executor(
            self._long if many else self._short, self._begin, request, context
        )
        ids = made if isinstance(made, list) else await loop.run_in_executor(self._long, made)
        return ids, as_text

    def _begin(
        self, request: ChatRequest, context: int
    ) -> tuple[list[int] | Callable[[], list[int]], list[str] | None]:
        found = [] if request.prompt is not None else self.prompts.find_control(request.messages)
        return self.prompts.begin(request, context), found or None

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """(prompt ids, completion ids), as they would have been recorded. Raises ContextLengthError."""
        d, model = demonstration, self.model
        prompt, reply = self.prompts.with_reply(
            d.messages, d.message, d.tools, d.template, model.stop_ids, model.context
        )
        if len(prompt) + len(reply) > model.context:
            advice = "that is prompt and reply together; shorten them"
            raise ContextLengthError(len(prompt) + len(reply), model.context, advice)
        return prompt, reply

    def encode_prompt(self, request: ChatRequest) -> list[int]:
        """Token ids of a request's prompt. Raises ContextLengthError if `max_tokens` do not fit after it."""
        context = self.model.context
        made = self.prompts.begin(request, context)
        ids = made if isinstance(made, list) else made()
        if (both := len(ids) + (request.max_tokens or 1)) > context:
            raise ContextLengthError(both, context, "that is prompt and reply together; shorten them")
        return ids

    async def count(self, request: ChatRequest) -> int:
        """The tokens of a request's prompt."""
        return len((await self._prompt(request))[0])

    def decode(self, token_id: int) -> str:
        """The text of one token."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _room(self, prompt: int, asked: int | None) -> int:
        """Tokens that a reply may have: no more than the context has left, as with vLLM and llama.cpp."""
        context = self.model.context
        if prompt >= context:
            raise ContextLengthError(prompt, context, make_room(context, self.model.longest))
        return context - prompt if asked is None else min(asked, context - prompt)


def _ends_here(request: ChatRequest) -> bool:
    """Whether the reply may be ended here, by a stop text or its first call: what comes later is in vain."""
    return bool(request.stop) or (bool(request.tools) and not request.parallel)
