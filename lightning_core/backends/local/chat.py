"""The engine as the gateway sees it: chat requests in, deltas out."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

from lightning_core.backends.local.completion import Completion, Options, Request
from lightning_core.backends.local.engine import Engine
from lightning_core.backends.local.model import Model
from lightning_core.backends.local.prompts import raw_ids, render, render_reply
from lightning_core.backends.local.text import StopStrings, TextStream
from lightning_core.backends.local.toolcalls import CLOSE, OPEN, ToolCalls
from lightning_core.errors import ContextLengthError
from lightning_core.gateway.upstream import ChatRequest, Delta
from lightning_core.types import Demonstration


class LocalUpstream:
    """Serves chat completions from the engine of this process (`gateway.upstream.Upstream`)."""

    def __init__(self, model: Model, engine: Engine, *, seed: int = 0) -> None:
        self.model_name = model.name
        self._model, self._engine = model, engine
        self._tokenizer = model.tokenizer.backend_tokenizer
        self._hidden = hidden_ids(model)
        self._random = random.Random(seed)

    async def chat(self, request: ChatRequest) -> LocalGeneration:
        """Put the choices in line. Raises ContextLengthError or UnsupportedError before that."""
        ids = self._prompt(request)
        room = self._room(len(ids), request.max_tokens)
        seed = self._random.getrandbits(64) if request.seed is None else request.seed
        shared = Request()
        choices = []
        for index in range(request.n):
            options = Options(
                max_tokens=room,
                temperature=request.temperature,
                top_p=request.top_p,
                top_logprobs=request.top_logprobs,
                seed=f"{seed}/{index}",
            )
            completion = Completion(ids, options, shared)
            text = TextStream(self._tokenizer, self._hidden)
            choices.append(Choice(index, completion, text, request))
            self._engine.submit(completion)
        return LocalGeneration(ids, shared, choices)

    def _prompt(self, request: ChatRequest) -> list[int]:
        tokenizer = self._model.tokenizer
        if request.prompt is None:
            return render(tokenizer, request.messages, request.tools, request.extra)
        return raw_ids(tokenizer, request.prompt, self._model.network.config.vocab_size)

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """(prompt ids, completion ids), as they would have been recorded. Raises ContextLengthError."""
        d, model = demonstration, self._model
        prompt, reply = render_reply(
            model.tokenizer, d.messages, d.message, d.tools, d.template, model.stop_ids
        )
        if len(prompt) + len(reply) > model.context:
            raise ContextLengthError(
                f"prompt and reply have {len(prompt) + len(reply)} tokens and the context of "
                f"{self.model_name!r} is {model.context}; shorten them"
            )
        return prompt, reply

    def decode(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def sampling_state(self) -> list[Any]:
        """Where the seeds of unseeded requests stand, as JSON."""
        version, numbers, gauss = self._random.getstate()
        return [version, list(numbers), gauss]

    def load_sampling_state(self, state: list[Any]) -> None:
        """Go on from `sampling_state`."""
        version, numbers, gauss = state
        self._random.setstate((version, tuple(numbers), gauss))

    def _room(self, prompt: int, asked: int | None) -> int:
        context = self._model.context
        if prompt >= context:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens and the context of {self.model_name!r} is {context}; "
                "shorten the prompt"
            )
        if asked is not None and prompt + asked > context:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens and max_tokens is {asked}: together {prompt + asked}, more "
                f"than the context of {self.model_name!r}, {context}; shorten the prompt or ask for at most "
                f"{context - prompt}"
            )
        return context - prompt if asked is None else asked


class LocalGeneration:
    """A running chat completion (`gateway.upstream.Generation`)."""

    def __init__(self, prompt_ids: list[int], request: Request, choices: list[Choice]) -> None:
        self.prompt_ids = prompt_ids
        self._request, self._choices = request, choices

    @property
    def policy_version(self) -> int:
        version = self._request.policy_version
        if version is None:
            raise RuntimeError("the policy version is known once the first delta has come")
        return version

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while not all(choice.ended for choice in self._choices):
                news = False
                for choice in self._choices:
                    delta = choice.advance()
                    if delta is not None:
                        news = True
                        yield delta
                if not news:
                    await self._request.wait()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Free the engine's rows at its next step."""
        for choice in self._choices:
            choice.completion.cancel()


class Choice:
    """What was read of one completion, as text and tool calls."""

    def __init__(self, index: int, completion: Completion, text: TextStream, request: ChatRequest) -> None:
        self.index, self.completion = index, completion
        self._text = text
        self._stops = StopStrings(request.stop)
        self._tools = ToolCalls() if request.tools else None
        self._seen = 0
        self.ended = False

    def advance(self) -> Delta | None:
        """A delta of all that is new; None if nothing is. Raises what the engine met."""
        if self.ended:
            return None
        if self.completion.error is not None:
            raise self.completion.error
        reason = self.completion.finish_reason  # before the ids: once it is set, they are all there
        start, new = self._seen, self.completion.ids[self._seen :]
        if not new and reason is None:
            return None
        text = ""
        for token_id in new:
            self._seen += 1
            text += self._stops.feed(self._text.feed(token_id))
            if self._stops.hit is not None:
                reason = "stop"
                self.completion.cancel()
                break
        return self._delta(start, text, reason)

    def _delta(self, start: int, text: str, reason: str | None) -> Delta:
        text += self._stops.flush() if reason else ""
        calls: list[dict[str, Any]] = []
        if self._tools is not None:
            text, calls = self._tools.feed(text)
            if reason:
                text += self._tools.flush()
                reason = "tool_calls" if self._tools.found and reason == "stop" else reason
        self.ended = reason is not None
        best = self.completion.best[start : self._seen] if self.completion.options.top_logprobs else None
        return Delta(
            choice=self.index,
            token_ids=self.completion.ids[start : self._seen],
            logprobs=self.completion.logprobs[start : self._seen],
            text=text,
            tool_calls=calls or None,
            top_logprobs=best,
            finish_reason=reason,
            stop=self._stops.hit if reason == "stop" else None,
        )


def hidden_ids(model: Model) -> frozenset[int]:
    """Special tokens and stop tokens have no text for the app; the tool-call tags are read before it sees
    them."""
    special = {i for i, token in model.tokenizer.added_tokens_decoder.items() if token.special}
    tags = {i for i, token in model.tokenizer.added_tokens_decoder.items() if token.content in (OPEN, CLOSE)}
    return frozenset((special | model.stop_ids) - tags)
