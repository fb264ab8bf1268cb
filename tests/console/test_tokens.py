"""Tokens as text: together they are the whole, whatever the tokenizer does at the beginning of a text."""

from __future__ import annotations

from functools import partial

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lightning_core.console.rollouts import pieces

TEXTS = ("the boats sail, and the boats sail home", "Größe: 12 µm \n é 漢字 🚤!", " ", "a")


def train(kind: str) -> Tokenizer:
    """A small tokenizer: of bytes, as GPT's, or with a mark for spaces that a beginning loses, as Llama's."""
    made = Tokenizer(models.BPE())
    of_bytes = kind == "bytes"
    made.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False) if of_bytes else pre_tokenizers.Metaspace()
    )
    made.decoder = decoders.ByteLevel() if of_bytes else decoders.Metaspace()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if of_bytes else []
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(list(TEXTS) * 3, trainer)
    return made


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_the_pieces_are_the_whole_text(kind, text):
    tokenizer = train(kind)
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    ids = tokenizer.encode(text).ids
    found = list(pieces(ids, decode))
    assert len(found) == len(ids)
    assert "".join(found) == decode(ids)


def test_a_character_of_several_tokens_stands_at_the_last_of_them():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    )
    assert list(pieces(tokenizer.encode("a🚤").ids, tokenizer.decode)) == ["a", "", "", "", "🚤"]
