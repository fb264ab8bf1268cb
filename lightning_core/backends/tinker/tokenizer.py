"""Whether the service reads text as the same token ids as the gateway, which renders the prompts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_core.backends.weights.sources import load_part
from lightning_core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

SAMPLES: Final = (
    "How many boats have a speed above 40?\n\tSELECT count(*) FROM boats WHERE speed > 40;",
    '{"name": "Zoë", "price": 1234567.89,   "note": "naïve — ÅÄÖ"}',
    "Δοκιμή Проверка 漢字かな 한국어 עברית العربية 🙂👩‍🚀\r\n  def f(x):\n        return x**2",
)
"""Texts of several scripts, with numbers, spaces and line ends, which tokenizers split in different ways."""


def check_tokenizer(ours: PreTrainedTokenizerBase, source: str, name: str | None, url: str) -> None:
    """Compare with the tokenizer that the service names: the ids of all tokens, and those of some texts.

    Raises ConfigError for a difference. One that can't be read on this machine is not compared, which the
    log says.
    """
    if name is None or _same_place(name, source):
        return
    from transformers import AutoTokenizer

    try:
        theirs = load_part(AutoTokenizer, name, "tokenizer")
    except ModelError as error:
        log.warning(
            "the service at %s has the tokenizer of %r, which was not compared with that of %r: %s",
            url, name, source, error,
        )  # fmt: skip
        return
    if (difference := find_difference(ours, theirs)) is not None:
        raise ConfigError(
            f"the service at {url} reads text with the tokenizer of {name!r}, and this run with that of "
            f"{source!r}, which is another: {difference}. Give model={name!r}, or as base_model=... the "
            f"service's name for {source!r}"
        )


def find_difference(ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase) -> str | None:
    """A token or text that has other ids with the second tokenizer; None if none was found."""
    here, there = ours.get_vocab(), theirs.get_vocab()
    if apart := here.items() ^ there.items():
        token, _ = min(apart, key=lambda each: each[::-1])
        return f"token {token!r} has the id {here.get(token)} here and {there.get(token)} there"
    for text in SAMPLES:
        ids = [each.encode(text, add_special_tokens=False) for each in (ours, theirs)]
        if ids[0] != ids[1]:
            return f"{text!r} is {ids[0]} here and {ids[1]} there"
    return None


def _same_place(name: str, source: str) -> bool:
    both = Path(name).exists() and Path(source).exists()
    return name == source or (both and Path(name).samefile(source))
