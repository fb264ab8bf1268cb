"""The tokenizer of the RAG policy: that of `recipes.tiny`, learnt from the app's conversations."""

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from recipes.tiny.corpus import Demonstration
from recipes.tiny.vocabulary import MARKS, SPECIAL, train_tokenizer

SIZE = 1300
"""More than there is to learn, so every word of the corpus becomes one token."""

PIECES = r"\p{L}+ ?|_\p{L}+|\p{N}{1,2} ?|[^\s\p{L}\p{N}]+ ?|\s+"
"""As in `recipes.tiny`, but a space belongs to the word before it. The first word of a name is always
followed by a space and the last one by a mark, so each is the same token in questions, queries and passages:
with the space in front, a name at the beginning of a string would be another token than in a sentence."""

_NO_TEXT = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKS))))


def make_tokenizer(demonstrations: Iterable[Demonstration], context: int) -> PreTrainedTokenizerFast:
    """A tokenizer learnt from the demonstrations, tools and all, as a chat endpoint renders them."""
    template = train_tokenizer([], len(SPECIAL) + len(MARKS) + 256, context)
    return train_tokenizer([_render(d, template) for d in demonstrations], SIZE, context, PIECES)


def _render(demonstration: Demonstration, template: PreTrainedTokenizerFast) -> str:
    turns = [*demonstration.messages, {"role": "assistant", "content": demonstration.reply}]
    text = template.apply_chat_template(turns, tools=demonstration.tools, tokenize=False)
    return _NO_TEXT.sub("", str(text))
