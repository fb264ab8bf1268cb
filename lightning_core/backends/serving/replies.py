"""Replies in flight as the gateway reads them: from token ids to text, stop strings and tool calls.

The text has whole characters only, and no special tokens.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Any, Final

from tokenizers.decoders import ByteLevel

from lightning_core.backends.serving.channels import Channels
from lightning_core.backends.serving.completion import Completion, CompletionRequest
from lightning_core.backends.serving.tags import Thinking, held_back
from lightning_core.backends.serving.tool_calls import ToolCalls
from lightning_core.dialects.upstream import ChatRequest, Delta

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


_BYTE: Final = re.compile("<0x[0-9A-Fa-f]{2}>")
"""A token that is one byte, as `tokenizers` reads it."""
_BROKEN: Final = "\ufffd"


class TextStream:
    """The text of a reply as its ids come in: in all, what the tokenizer makes of them at once.

    Some tokenizers spell a character they lack as byte tokens (Llama 2, Mistral, Gemma) and read a run of
    them as a whole: one byte out of place makes U+FFFD of each. So a run's text comes when the run has ended.
    """

    def __init__(
        self, tokenizer: Tokenizer, hidden: frozenset[int], texts: dict[int, str] | None = None
    ) -> None:
        """`hidden` ids have no text for the app. `texts` keeps those of single tokens, for all streams of the
        tokenizer."""
        self._tokenizer, self._hidden = tokenizer, hidden
        decoder = tokenizer.decoder
        self._texts = ({} if texts is None else texts) if isinstance(decoder, ByteLevel) else None
        """None: a token's text depends on those before it. A byte-level decoder joins the tokens' bytes."""
        self._runs = self._texts is None and "ByteFallback" in repr(decoder)
        self._ids: list[int] = []
        """Ids whose text came last, as what follows may depend on them, then those without text so far."""
        self._read, self._known = 0, ""
        """How many the former are, and their text."""

    def feed(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        if token_id in self._hidden:
            return ""
        if self._texts is not None and len(self._ids) == self._read:
            alone = self._texts.get(token_id)
            if alone is None:
                alone = self._texts[token_id] = self._decode([token_id])
            if _BROKEN not in alone:
                self._ids, self._read, self._known = [token_id], 1, alone
                return alone
        self._ids.append(token_id)
        if self._runs and _BYTE.fullmatch(self._tokenizer.id_to_token(token_id) or ""):
            return ""
        text = self._decode(self._ids)
        if text.endswith(_BROKEN):
            return ""
        last = self._ids[self._read :]
        new, self._ids, self._read = text[len(self._known) :], last, len(last)
        self._known = self._decode(last)
        return new

    def flush(self) -> str:
        """The text of what was left, once the reply has ended: U+FFFD for half a character."""
        text, self._ids = self._decode(self._ids), self._ids[: self._read]
        return text[len(self._known) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


class StopStrings:
    """Lets text through until a stop string is complete; the stop string itself is not let through."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(s for s in stops if s)
        self._held = ""
        self.hit: str | None = None
        """The stop string that was complete first."""

    def feed(self, text: str) -> str:
        """The text that can't be part of a stop string any more."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            at, self.hit = min(found)
            return text[:at]
        keep = len(text) - held_back(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Returns the text that was held back, once the reply has ended without a stop string."""
        held, self._held = self._held, ""
        return held


class ChatGeneration:
    """A running chat completion (`upstream.Generation`)."""

    def __init__(
        self,
        prompt_ids: list[int],
        request: CompletionRequest,
        choices: list[ParsedChoice],
        grammar: str | None = None,
    ) -> None:
        self.prompt_ids, self.grammar = prompt_ids, grammar
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


class Parts:
    """Parts a reply into its thought, its content and its calls, by the tags around them."""

    def __init__(self, thinking: Thinking | None = None, tools: ToolCalls | None = None) -> None:
        """Without `thinking` nothing is a thought, without `tools` nothing a call."""
        self._thinking, self._tools = thinking, tools

    @property
    def found(self) -> int:
        """How many calls there were."""
        return self._tools.found if self._tools is not None else 0

    def feed(self, text: str) -> tuple[str, str, list[dict[str, Any]]]:
        """(thought that is certain, content that is certain, calls that are complete)."""
        thought = ""
        if self._thinking is not None:
            thought, text = self._thinking.feed(text)
        return thought, *self._call(text)

    def flush(self, *, cut: bool = False) -> tuple[str, str, list[dict[str, Any]]]:
        """Returns the text that was held back, once the reply has ended, as `feed`; `cut`: not by the model
        itself."""
        thought, text = self._thinking.flush() if self._thinking is not None else ("", "")
        content, calls = self._call(text)
        rest, last = self._tools.flush(cut=cut) if self._tools is not None else ("", [])
        return thought, content + rest, calls + last

    def _call(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        return (text, []) if self._tools is None or not text else self._tools.feed(text)


class ParsedChoice:
    """One completion, read as thoughts, text and tool calls."""

    def __init__(
        self,
        index: int,
        completion: Completion,
        text: TextStream,
        request: ChatRequest,
        parts: Parts | Channels | None = None,
    ) -> None:
        """`parts` knows how the model writes thoughts and calls; without, all is content."""
        self.index, self.completion = index, completion
        self._text = text
        self._stops = StopStrings(request.stop)
        self._parts = parts or Parts()
        self._parallel = request.parallel
        self._forced = request.constraint is not None and request.constraint.tools is not None
        """Whether the reply is calls and nothing else."""
        self._thought = ""
        """The new part of the thought."""
        self._seen = 0
        self.ended = False
        self.left_out: str | None = None
        """Why an update can't compute its log-probabilities; None if it can."""
        self.as_text: list[str] | None = None
        """The tokens of the model's own that stand in the prompt as text."""

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
        calls: list[dict[str, Any]] = []
        for token_id in new:
            self._seen += 1
            text += self._take(self._stops.feed(self._text.feed(token_id)), calls)
            if self._complete:
                reason = "stop"
                self.completion.cancel()
                break
            if calls and self._seen < start + len(new):
                reason = None  # a delta's text comes before its calls, so what follows them is the next one's
                break
        return self._delta(start, text, calls, reason)

    @property
    def _complete(self) -> bool:
        """Whether a stop string has ended it, or the first of its tool calls where it may have no other."""
        return self._stops.hit is not None or (self._parts.found > 0 and not self._parallel)

    def _take(self, text: str, calls: list[dict[str, Any]]) -> str:
        """Returns the content of the text; keeps thoughts and tool calls apart."""
        return self._keep(self._parts.feed(text), calls) if text else ""

    def _keep(self, parts: tuple[str, str, list[dict[str, Any]]], calls: list[dict[str, Any]]) -> str:
        thought, content, found = parts
        self._thought += thought
        calls += found if self._parallel else found[: 1 - len(calls)]
        return content

    def _delta(self, start: int, text: str, calls: list[dict[str, Any]], reason: str | None) -> Delta:
        if reason:
            rest = self._rest(calls, cut=reason == "length")
            text = "" if self._forced else text + rest
            reason = "stop" if self._stops.hit else reason
            reason = "tool_calls" if self._parts.found and reason == "stop" else reason
        self.ended = reason is not None
        thought, self._thought = self._thought, ""
        best = self.completion.best[start : self._seen] if self.completion.options.top_logprobs else None
        return Delta(
            choice=self.index,
            token_ids=self.completion.ids[start : self._seen],
            logprobs=self.completion.logprobs[start : self._seen],
            text=text,
            tool_calls=calls or None,
            thought=thought,
            top_logprobs=best,
            finish_reason=reason,
            stop=self._stops.hit if reason == "stop" else None,
            kept=self.completion.kept[start : self._seen] or None,
            left_out=self.left_out if reason else None,
            as_text=self.as_text if reason else None,
            cached=self.completion.cached,
        )

    def _rest(self, calls: list[dict[str, Any]], *, cut: bool) -> str:
        """Content that was held back, once the reply has ended."""
        text = "" if self._complete else self._take(self._stops.feed(self._text.flush()), calls)
        text += self._take(self._stops.flush(), calls)
        cut = cut or self._stops.hit is not None
        return text + self._keep(self._parts.flush(cut=cut), calls)


def hidden_ids(
    tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int], shown: Collection[str]
) -> frozenset[int]:
    """Special tokens and stop tokens have no text for the app, but for the tags that are read before it."""
    added = tokenizer.added_tokens_decoder.items()
    special = {i for i, token in added if token.special}
    return frozenset((special | stop_ids) - {i for i, token in added if token.content in shown})
