"""Small JSON Schemas, and a walk through one: the masks alone, every token equally likely, which is harder
than any model."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from lightning_core.backends.serving.constraints import Grammars, penalties
from lightning_core.dialects.upstream import ChatRequest, Constraint

UNFINISHED = object()
LONGEST = 300
"""Tokens of a walk: the digits of a number may go on."""
KEYS = st.sampled_from(["a", "b", 'q"\\', "é", "a b"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda n, more: {"type": "integer", "minimum": n, "maximum": n + more},
        st.integers(-50, 50),
        st.integers(0, 99),
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 4)),
    st.builds(lambda texts: {"enum": texts}, st.lists(st.text(max_size=3), min_size=1, max_size=3)),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
    st.just({"type": "string", "format": "date"}),
    st.just({"type": "number", "minimum": 0, "maximum": 1}),
)  # fmt: skip
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda item, n: {"type": "array", "items": item, "maxItems": n}, inner, st.integers(0, 2)),
        st.builds(
            lambda properties, every: {
                "type": "object",
                "properties": properties,
                "required": list(properties) if every else [],
                "additionalProperties": False,
            },
            st.dictionaries(KEYS, inner, max_size=2),
            st.booleans(),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=4,
)


def walk(grammars: Grammars, tokenizer: PreTrainedTokenizerBase, schema: Any, draw: random.Random) -> Any:
    """The value that a walk ends in, which stops as soon as it may; UNFINISHED if it is too long."""
    grammar = grammars.write(ChatRequest([], constraint=Constraint(schema=schema)))
    assert grammar is not None
    matcher, ids, words = grammars.start(grammar), [], np.zeros(grammars.words, np.uint32)
    while len(ids) < LONGEST:
        matcher.fill(words)
        may = np.flatnonzero(penalties(words, grammars.vocabulary) == 0).tolist()
        assert may, "no token may come next"
        if tokenizer.eos_token_id in may:
            return json.loads(tokenizer.decode(ids))
        ids.append(draw.choice(may))
        matcher.take(ids[-1])
    return UNFINISHED
