"""Replies under way as the gateway reads them: from token ids to text and tool calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from lightning_core.backends.chat.completion import Completion, Request
from lightning_core.backends.chat.text import StopStrings, TextStream
from lightning_core.backends.chat.toolcalls import CLOSE, OPEN, ToolCalls
from lightning_core.upstream import ChatRequest, Delta

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatGeneration:
    """A running chat completion (`upstream.Generation`)."""

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
        """Let the engine stop sampling."""
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


def hidden_ids(tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]) -> frozenset[int]:
    """Special tokens and stop tokens have no text for the app; the tool-call tags are read before it sees
    them."""
    added = tokenizer.added_tokens_decoder.items()
    special = {i for i, token in added if token.special}
    tags = {i for i, token in added if token.content in (OPEN, CLOSE)}
    return frozenset((special | stop_ids) - tags)
