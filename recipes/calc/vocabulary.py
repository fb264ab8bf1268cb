"""The tokenizer: that of `recipes.tiny`, but a number is the same tokens wherever it stands."""

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from recipes.tiny.corpus import Demonstration
from recipes.tiny.vocabulary import MARKS, SPECIAL, train_tokenizer

PIECES = r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+"
"""A word, two digits, punctuation, or white space. Digits never take the space before them along, so that
`14` in a question and `14` in a calculation are the same, which makes copying easy."""

TAGS = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKS))))


def learn_tokenizer(
    demonstrations: Iterable[Demonstration], size: int, context: int
) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `size` tokens, learnt from the demonstrations as prompts show them."""
    blank = train_tokenizer([], size, context, PIECES)
    texts = []
    for demonstration in demonstrations:
        prompt = blank.apply_chat_template(
            demonstration.messages, tools=demonstration.tools, add_generation_prompt=True, tokenize=False
        )
        texts.append(TAGS.sub("", f"{prompt}{demonstration.reply}"))
    return train_tokenizer(texts, size, context, PIECES)
