"""An engine that reads its lines: deterministic tokens, one for each word, as slow as a test wants."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from lightning_core.dialects.upstream import ChatRequest, Delta
from lightning_core.errors import ContextLengthError

END = 0
"""The stop token."""


@dataclass
class Line:
    """One choice's reply."""

    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    thought: str = ""
    stop: str | None = None
    """The stop text that ends it."""


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once the condition holds; it may be about another thread."""
    for _ in range(int(seconds / 0.002)):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"it did not come true within {seconds} s")


def echo(request: ChatRequest, choice: int) -> Line:
    """Repeat the last message; choices after the first say which they are."""
    words = str(request.prompt or request.messages[-1]["content"])
    return Line(words if choice == 0 else f"{words} {choice}")


def logprob(token: int) -> float:
    """Each token's own log-probability, so that a test can tell any two apart: a float32, as of an engine."""
    return array("f", [-1.0 / (1 + token)])[0]


@dataclass
class ScriptedEngine:
    """An `Upstream` whose vocabulary is the words it has met."""

    says: Callable[[ChatRequest, int], Line] = echo
    delay: float = 0.0
    """Seconds between two tokens."""
    context: int = 10_000
    policy_version: int = 7
    fails_after: int | None = None
    """Raise after so many tokens."""
    breaks_off_after: int | None = None
    """End the reply after so many tokens, without saying why."""
    pause_after: int | None = None
    """Wait for `resume` after so many tokens."""
    model_name: str = "scripted"
    resume: threading.Event = field(default_factory=threading.Event)
    paused: int = 0
    """How many replies have come to their pause."""
    requests: list[ChatRequest] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    held: threading.Event | None = None
    """While given and not set, requests wait to begin (weights are being changed)."""
    words: list[str] = field(default_factory=lambda: ["<end>"])

    async def chat(self, request: ChatRequest) -> ScriptedGeneration:
        self.requests.append(request)
        if self.held is not None:
            await until(self.held.is_set)
        prompt_ids = self.prompt_ids(request)
        if len(prompt_ids) > self.context:
            raise ContextLengthError(len(prompt_ids), self.context, "shorten it")
        self.opened += 1
        return ScriptedGeneration(self, request, prompt_ids)

    async def count(self, request: ChatRequest) -> int:
        return len(self.prompt_ids(request))

    def decode(self, token_id: int) -> str:
        return self.words[token_id]

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        if request.prompt is not None:
            return self.encode(request.prompt) if isinstance(request.prompt, str) else request.prompt
        return [token for message in request.messages for token in self.encode(str(message["content"]))]

    def encode(self, text: str) -> list[int]:
        return [self._token(word) for word in text.split()]

    def _token(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


class ScriptedGeneration:
    grammar: str | None = None

    def __init__(self, engine: ScriptedEngine, request: ChatRequest, prompt_ids: list[int]) -> None:
        self.prompt_ids = prompt_ids
        self.policy_version = engine.policy_version
        self._engine = engine
        self._request = request
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        lines = [self._engine.says(self._request, choice) for choice in range(self._request.n)]
        tokens = [self._engine.encode(line.text) for line in lines]
        limit = self._request.max_tokens or 10_000
        for choice, line in enumerate(lines):
            for piece in line.thought.splitlines(keepends=True):
                yield Delta(choice, [], [], thought=piece)
        for position in range(limit):
            if position == self._engine.breaks_off_after:
                return
            for choice, ids in enumerate(tokens):
                if position < len(ids):
                    await self._pace(position)
                    cut = position + 1 == limit
                    yield self._word(choice, ids[position], position, "length" if cut else None)
                elif position == len(ids):
                    await self._pace(position)
                    yield self._last(choice, lines[choice])

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.closed += 1

    async def _pace(self, position: int) -> None:
        engine = self._engine
        if engine.delay:
            await asyncio.sleep(engine.delay)
        if engine.pause_after == position:
            engine.paused += 1
            await until(engine.resume.is_set)
        if engine.fails_after == position:
            raise RuntimeError("out of memory")

    def _word(self, choice: int, token: int, position: int, finish: str | None) -> Delta:
        word = self._engine.words[token]
        text = word if position == 0 else f" {word}"
        top = [[(token, logprob(token)), (END, -9.0)]] if self._request.top_logprobs else None
        return Delta(choice, [token], [logprob(token)], text, top_logprobs=top, finish_reason=finish)

    def _last(self, choice: int, line: Line) -> Delta:
        top = [[(END, logprob(END)), (END, -9.0)]] if self._request.top_logprobs else None
        return Delta(
            choice,
            [END],
            [logprob(END)],
            tool_calls=line.tool_calls,
            stop=line.stop,
            top_logprobs=top,
            finish_reason="tool_calls" if line.tool_calls else "stop",
        )
