"""Makes small model folders and what the tests ask of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TEXT = """SELECT name, price FROM products WHERE active = 1 ORDER BY price DESC LIMIT 5;
the quick brown fox jumps over the lazy dog, and then it asks what the total revenue of the year was.
{"name": "search", "arguments": {"query": "weather in Paris", "limit": 3}} 0123456789 grüße 日本 😀
"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>"]
TEMPLATE = """{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}
{%- if message.role == 'narrator' %}{{ raise_exception('no role narrator') }}{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of about 400 tokens, ChatML, tool calls in Qwen's form."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.add_tokens(TAGS)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = TEMPLATE
    return fast


def make_byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each small letter and one for each byte, as Llama 2's and Gemma's have."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz[]\n"]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in special])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
    return fast


def make_network(
    kind: str, vocabulary: int, *, seed: int = 0, hidden: int = 64, **more: Any
) -> PreTrainedModel:
    """Random weights, large enough that greedy decoding has no near ties."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "eos_token_id": 2,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    if kind == "gpt2":
        config = GPT2Config(
            n_embd=hidden, n_layer=2, n_head=4, n_positions=512, initializer_range=0.2, **common
        )
        return GPT2LMHeadModel(config)
    common |= {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": kind == "qwen3",
        **more,
    }
    return (
        Qwen3ForCausalLM(Qwen3Config(**common))
        if kind == "qwen3"
        else LlamaForCausalLM(LlamaConfig(**common))
    )


LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": LAYERS, "head_dim": 16}
DELTA |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHORT = {"layer_types": ["conv", "conv", "full_attention", "conv"]}
MAMBA = {
    "mamba_chunk_size": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
}
STATES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_next": DELTA | EXPERTS | {"shared_expert_intermediate_size": 32},
    "lfm2": SHORT | {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": SHORT | EXPERTS | {"num_dense_layers": 1},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 128, "head_dim": 16, "num_hidden_layers": 2},
    "bamba": MAMBA | {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": MAMBA
    | {
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
    },
    "jamba": EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 16},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "block_size": 16,
    },
}
"""Options for a small network of each family that keeps state outside attention."""


def make_state_network(
    family: str, vocabulary: int, *, scale: float = 8.0, seed: int = 0, **more: Any
) -> PreTrainedModel:
    """Random weights of a family of `STATES`, matrices `scale` times as large as transformers makes them."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    config = AutoConfig.for_model(family, **common | STATES[family] | more)
    network: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(scale if weight.ndim == 2 else 1.0)
    return network


def save_model(folder: Path, kind: str, **more: Any) -> Path:
    """An ordinary transformers folder."""
    tokenizer = make_tokenizer()
    make = make_state_network if kind in STATES else make_network
    make(kind, len(tokenizer), **more).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
