"""The tokens of a text, each as what it adds to the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Decode = Callable[[list[int]], str]
"""The text of token ids, special tokens included, such as `functools.partial(tokenizer.decode,
skip_special_tokens=False)` of a tokenizer of `tokenizers` or `transformers`."""
_PART = "\ufffd"
"""What a tokenizer writes for a character of which some bytes are missing."""


def pieces(ids: Sequence[int], decode: Decode) -> Iterator[str]:
    """What each token adds to the text; "" for all but the last token of a character that several make.

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
