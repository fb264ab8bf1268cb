"""The tokens of a call as text, each with how surprising it was to the policy that sampled it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from lightning_core.types import Call

Decode = Callable[[list[int]], str]
"""The text of token ids, special tokens included, such as `functools.partial(tokenizer.decode,
skip_special_tokens=False)` of a tokenizer of `tokenizers` or `transformers`."""
_PART = "\ufffd"
"""What a tokenizer writes for a character of which some bytes are missing."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as text; the texts of all tokens together are the text of the whole."""

    id: int
    text: str
    """What it adds; "" for all but the last token of a character that several make."""
    logprob: float | None = None
    """Natural log-probability; None for a token of the prompt."""

    @property
    def surprise(self) -> float | None:
        """-log p in nats: 0 for a token that was certain."""
        return None if self.logprob is None else -self.logprob


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a call; () where the engine gave none."""

    prompt: tuple[Token, ...]
    choices: tuple[tuple[Token, ...], ...]


def tokens(call: Call, decode: Decode) -> Tokens:
    """Prompt and choices of a call, token by token."""
    prompt = tuple(map(Token, call.prompt_ids or (), pieces(call.prompt_ids or (), decode)))
    choices = tuple(
        tuple(
            Token(one, text, logprob)
            for one, text, logprob in zip(
                choice.completion_ids or (),
                pieces(choice.completion_ids or (), decode),
                choice.logprobs or repeat(None, len(choice.completion_ids or ())),
                strict=True,
            )
        )
        for choice in call.choices
    )
    return Tokens(prompt, choices)


def pieces(ids: Sequence[int], decode: Decode) -> Iterator[str]:
    """What each token adds to the text.

    A tokenizer may write a token otherwise at the beginning of a text, so each is read after those of the
    piece before it.
    """
    begin, done = 0, 0
    for end in range(1, len(ids) + 1):
        before, now = decode(list(ids[begin:done])), decode(list(ids[begin:end]))
        if end < len(ids) and now.endswith(_PART):
            yield ""
        else:
            yield now[len(before) :]
            begin, done = done, end


def surprise(call: Call) -> float | None:
    """Mean surprise of the sampled tokens of all choices, in nats; None without log-probabilities."""
    given = [logprob for choice in call.choices for logprob in choice.logprobs or ()]
    return -sum(given) / len(given) if given else None
