"""A policy that can read the crew's prompts: the shipped one, with a token for each of CrewAI's phrases.

CrewAI wraps a task in words of its own, some 200 tokens of them when the shipped policy has to spell them,
which it has never seen and across which a model this small copies no name. As one token each they leave the
prompt as short as the policy knows it. No phrase is written down here, since they differ between versions of
CrewAI: the crew is run once, with a model that listens, on texts that stand for the real ones.
"""

import os
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from crewai import BaseLLM
from pydantic import PrivateAttr
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

import lightning_core
from examples.crew.app import build_crew
from examples.sql.prompts import Messages

SHIPPED = Path(lightning_core.__file__).parent / "models/tiny"
SCHEMA, QUESTION, REPLY = "no schema", "no question", "no query"
"""Texts in place of the real ones while the crew is overheard."""


class Listener(BaseLLM):
    """A model that keeps what it is asked. Its answer is no query, so that both roles are asked."""

    _asked: list[Messages] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[Messages]:
        return self._asked

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self._asked.append([{"role": str(m["role"]), "content": str(m["content"])} for m in messages])
        return REPLY


def write_policy(parent: Path) -> Path:
    """The policy's folder in `parent`, written when it is not there; never seen half-written.

    Its name carries a digest of the phrases and of the shipped policy, so that another version of either
    gets another folder.
    """
    phrases = overhear_phrases()
    digest = zlib.crc32(repr(phrases).encode())
    for file in sorted(SHIPPED.iterdir()):
        digest = zlib.crc32(file.read_bytes(), digest)
    folder = parent / f"policy-{digest:08x}"
    if folder.exists():
        return folder
    model = Qwen3ForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    add_phrases(model, tokenizer, phrases)
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        draft = Path(scratch) / "policy"
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        try:
            os.replace(draft, folder)
        except OSError:
            if not folder.exists():  # else another run was first
                raise
    return folder


def overhear_phrases() -> list[str]:
    """Returns CrewAI's words around schema, question, query and result in the prompts of both roles."""
    with tempfile.TemporaryDirectory() as scratch:
        database = Path(scratch) / "empty.sqlite"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE stand_in (id)")
        llm = Listener(model="listener")
        answer = build_crew(str(database), llm).kickoff(inputs={"schema": SCHEMA, "question": QUESTION})
    texts = (f"{SCHEMA}\nQuestion: {QUESTION}", str(answer))
    return _around(texts, (message["content"] for messages in llm.asked for message in messages))


def add_phrases(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, phrases: list[str]) -> None:
    """Give each phrase a token, whose embedding is the mean of those that spelt it until now."""
    spelt = [tokenizer.encode(phrase, add_special_tokens=False) for phrase in phrases]
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    embeddings = model.get_input_embeddings().weight
    with torch.no_grad():
        for phrase, ids in zip(phrases, spelt, strict=True):
            embeddings[tokenizer.convert_tokens_to_ids(phrase)] = embeddings[ids].mean(dim=0)


def _around(texts: Iterable[str], contents: Iterable[str]) -> list[str]:
    """The pieces of the contents between the texts, each once."""
    between = re.compile("|".join(map(re.escape, texts)))
    return sorted({piece for content in contents for piece in between.split(content) if piece})
