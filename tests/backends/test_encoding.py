"""A text encoded piece by piece has the ids of the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lightning_core.backends.serving.encoding import Encoder, find_cuts
from lightning_core.backends.weights.sources import tiny_folder
from tests.backends.models import SPECIAL, TEXT, make_tokenizer

TEMPLATE = "<|im_start|>user <|im_end|> <s> [INST] [/INST] <pad>"


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerBase:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    return fast


def tiny() -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(tiny_folder()))
    return tokenizer


def composing() -> PreTrainedTokenizerBase:
    """As Qwen's: byte-level, brought to normal form C first, digits one by one."""
    tokenizer = make_tokenizer()
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    return tokenizer


def greedy_spaces() -> PreTrainedTokenizerBase:
    """As Phi-3's: special tokens that take up the space after them."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.add_special_tokens([AddedToken("<pad>", rstrip=True, normalized=False)])
    return tokenizer


def pieces_of_words(kind: str) -> PreTrainedTokenizerBase:
    """As those of SentencePiece: a mark for a space, one before the first word only, or before each piece."""
    tokenizer = Tokenizer(
        models.Unigram() if kind == "unigram" else models.BPE(unk_token="<unk>", fuse_unk=True)
    )
    if kind == "prepending":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace()
    options = {
        "vocab_size": 300,
        "special_tokens": ["<unk>", *SPECIAL, "<s>", "[INST]"],
        "show_progress": False,
    }
    make = trainers.UnigramTrainer if kind == "unigram" else trainers.BpeTrainer
    more = {"unk_token": "<unk>"} if kind == "unigram" else {}
    tokenizer.train_from_iterator(TEXT.splitlines() * 5, make(**options, **more))
    return wrap(tokenizer)


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "tiny": tiny,
    "byte-level": make_tokenizer,
    "composing": composing,
    "greedy spaces": greedy_spaces,
    "unigram": lambda: pieces_of_words("unigram"),
    "first": lambda: pieces_of_words("first"),
    "prepending": lambda: pieces_of_words("prepending"),
}
MADE = {name: make() for name, make in TOKENIZERS.items()}
ENCODERS = {name: (tokenizer, Encoder(tokenizer, cache_bytes=50_000)) for name, tokenizer in MADE.items()}
WORDS = [*SPECIAL, "<tool_call>", "<s>", "[INST]", "<pad>", "<|im_", "start|>", "<", "|>", "\n", "  ", "user"]
WORDS += [
    "the fox",
    "SELECT name",
    "123456",
    "e\u0301",
    "\u0301",
    "\u0338",
    "\u212a",
    "ü",
    "日本",
    "😀",
    "\u0004",
]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(st.characters(codec="utf-8"), max_size=8), max_size=30).map(
    "".join
)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS)
def test_the_ids_of_the_pieces_are_those_of_the_whole_text(name: str, text: str) -> None:
    tokenizer, encoder = ENCODERS[name]
    whole = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    for _ in range(2):  # the second time from memory
        pieces = encoder.cut(text)
        assert "".join(pieces) == text
        assert encoder.encode(pieces).tolist() == whole


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_tokenizer_here_is_cut_at_the_tokens_of_its_template(name: str) -> None:
    pieces = ENCODERS[name][1].cut("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert len(pieces) == 3


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("<|im_start|>x", normalized=False),  # longer
        AddedToken("a<|im", normalized=False),  # reaches into it
        AddedToken("whole", normalized=False, single_word=True),  # depends on what stands beside it
    ],
    ids=str,
)
def test_a_text_is_not_cut_where_another_token_could_take_part_of_the_cut(token: AddedToken) -> None:
    tokenizer = make_tokenizer()
    assert find_cuts(tokenizer.backend_tokenizer, "<|im_start|>") is not None
    tokenizer.backend_tokenizer.add_tokens([token])
    assert find_cuts(tokenizer.backend_tokenizer, "<|im_start|>") is None
    assert Encoder(tokenizer).cut("<|im_start|>x<|im_start|>") != []


@pytest.mark.parametrize("flag", ["lstrip", "normalized"])
def test_a_token_that_is_not_taken_out_as_it_stands_is_no_cut(flag: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<x>", **{"normalized": False, flag: True})])
    assert find_cuts(tokenizer.backend_tokenizer, "<x>") is None


def test_texts_with_other_ids_each_time_or_with_special_tokens_as_text_are_not_cut() -> None:
    backend = make_tokenizer().backend_tokenizer
    backend.encode_special_tokens = True
    assert find_cuts(backend, "<|im_start|>") is None
    backend.encode_special_tokens = False
    backend.model.dropout = 0.5
    assert find_cuts(backend, "<|im_start|>") is None


def test_what_is_remembered_stays_within_its_memory_and_the_oldest_goes_first() -> None:
    encoder = Encoder(make_tokenizer(), cache_bytes=20_000)
    texts = [f"<|im_start|>fox {i}" for i in range(100)]
    for text in texts:
        encoder.encode([text])
    assert 0 < sum(encoder.unknown([text]) == 0 for text in texts) < 60
    assert encoder.unknown(texts[-5:]) == 0
    encoded = encoder.encoded
    encoder.encode(texts[-5:] * 3)
    assert encoder.encoded == encoded
