"""A model's memory: against figures worked out by hand, and against measurements of real networks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.verl.preflight import critic_memory, policy_memory, serving_memory
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.backends.weights.sizes import ModelSize, size_of

GIB = 1 << 30
QWEN: Any = {
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}

CHECKPOINT = "activation_checkpointing_enable"
"""As newer versions of transformers call it."""


def qwen(hidden: int, inner: int, layers: int, heads: int, *, tied: bool = True) -> Qwen3Config:
    return Qwen3Config(
        **QWEN,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=tied,
    )


QWEN_06, QWEN_17 = qwen(1024, 3072, 28, 16), qwen(2048, 6144, 28, 16)
QWEN_8 = qwen(4096, 12288, 36, 32, tied=False)
LLAMA_8 = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    tie_word_embeddings=False,
)


def shape(config: Any, context: int = 8192) -> ModelSize:
    return size_of(config, Path("model"), context)


@pytest.fixture(autouse=True)
def graphics(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine for GPUs, whatever the environment of the tests says."""
    monkeypatch.delenv("VERL_PLATFORM", raising=False)


@pytest.mark.parametrize(
    ("config", "parameters"),
    # as their model cards say: 0.6 B, 1.7 B, 8.2 B, 8.03 B
    [(QWEN_06, 596_049_920), (QWEN_17, 1_720_574_976), (QWEN_8, 8_190_735_360), (LLAMA_8, 8_030_261_248)],
    ids=["qwen-0.6", "qwen-1.7", "qwen-8", "llama-8"],
)
def test_parameters_are_those_of_the_published_models(config, parameters):
    assert shape(config).parameters == parameters


def test_llama_8b_trained_whole_on_eight_gpus():
    """A layer: q and o 4096 * 4096 each, k and v 4096 * 1024 each, three times 4096 * 14336, two norms."""
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    outside = 2 * 128256 * 4096 + 4096
    need = policy_memory(VerlSettings("x", pack_tokens=16384), shape(LLAMA_8), 8)
    assert (need.weights, need.gradients) == (4_015_130_624, 4_015_130_624)  # 4 * 8,030,261,248 / 8
    assert need.optimizer == 8_030_261_248
    assert need.gathered == 2 * 2 * layer + 2 * 2 * outside + 4 * outside  # 9.28 GB
    inputs = 16384 * 2 * 4096 * 32  # 4.3 GB
    whole = 16384 * (2 * (6 * 4096 + 4 * 14336 + 4 * 5120) + 8 * 4096 + 4 * 5120)  # 4.2 GB
    assert need.activations == inputs + whole
    assert need.logits == 3 * 2 * 16384 * 128256  # 12.6 GB
    assert need.peak / GIB == pytest.approx(43.3, abs=0.1)


def test_an_8b_model_needs_sixteen_bytes_of_each_parameter_on_one_gpu():
    need = policy_memory(VerlSettings("x"), shape(QWEN_8), 1)
    assert need.state + need.gradients == 16 * 8_190_735_360


def test_lora_trains_its_adapters_alone():
    """Rank 16 beside q (1024, 2048), k and v (1024, 1024), o (2048, 1024), gate, up (1024, 3072) and down."""
    per_layer = 16 * (2 * (1024 + 2048) + 2 * (1024 + 1024) + 3 * (1024 + 3072))
    need = policy_memory(VerlSettings("x", lora=LoraOptions(rank=16)), shape(QWEN_06), 1)
    assert need.gradients == 4 * 28 * per_layer  # 40 MB
    assert need.optimizer == 2 * need.gradients
    assert need.weights == 4 * 596_049_920
    some = VerlSettings("x", lora=LoraOptions(rank=8, targets=("q_proj", "v_proj")))
    assert policy_memory(some, shape(QWEN_06), 1).gradients == 4 * 28 * 8 * (3072 + 2048)


@pytest.mark.parametrize(("dtype", "b"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_serving_takes_weights_and_at_least_one_context(dtype, b):
    need = serving_memory(VerlSettings("x", dtype=dtype), shape(QWEN_06, 4096))
    assert need.weights == b * 596_049_920
    assert need.token == b * 2 * 28 * 8 * 128  # 114,688 bytes in bfloat16
    assert need.context == 4096 * need.token
    assert need.least == need.weights + need.working + need.context


def test_tensor_parallel_divides_weights_and_heads_down_to_one_head():
    need = serving_memory(VerlSettings("x", tensor_parallel=4), shape(QWEN_8))
    assert need.weights == 2 * 8_190_735_360 // 4
    assert need.token == 2 * 2 * 36 * 2 * 128  # two of its eight key heads
    more = serving_memory(VerlSettings("x", tensor_parallel=16), shape(QWEN_8))
    assert more.token == 2 * 2 * 36 * 128


def test_a_critic_is_trained_whole_beside_lora():
    settings, small = VerlSettings("x", lora=LoraOptions()), shape(QWEN_06)
    critic = critic_memory(settings, small, 2)
    assert critic.optimizer == 8 * 596_049_920 // 2
    assert critic.logits == 0


# measured -----------------------------------------------------------------------------------
class Live(TorchDispatchMode):
    """Counts the bytes of all storages that are alive while it is on, and the most of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._see, out)
        return out

    def know(self, network: torch.nn.Module) -> None:
        """Its weights are counted from the start."""
        for parameter in network.parameters():
            self._see(parameter)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place not in self._known:
            self._known.add(place)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, place, size)

    def _forget(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def small(kind: Callable[..., Any], **more: Any) -> Any:
    return kind(
        vocab_size=600,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        **more,
    )


@pytest.mark.parametrize("kind", [Qwen3Config, LlamaConfig])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_what_a_real_update_took_is_below_the_estimate_and_not_far(kind, checkpoints, monkeypatch):
    """The pass as verl makes it: logits, row by row their log-softmax, backward, a step of Adam."""
    config, tokens = small(kind), 512
    network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    if checkpoints:
        getattr(network, CHECKPOINT, network.gradient_checkpointing_enable)()
    optimizer = torch.optim.AdamW(network.parameters(), foreach=True)
    live = Live()
    live.know(network)
    with live:
        for _ in range(2):  # only the second has both moments and gradients
            ids = torch.zeros(1, tokens, dtype=torch.long)
            scores = network(input_ids=ids, use_cache=False).logits[0]
            sum(torch.log_softmax(row, -1)[0] for row in scores).backward()
            optimizer.step()
            optimizer.zero_grad()
    settings = VerlSettings("x", dtype="float32", pack_tokens=tokens)
    if not checkpoints:
        monkeypatch.setenv("VERL_PLATFORM", "cpu")
    need = policy_memory(settings, shape(config, tokens), 1)
    alone = need.peak - need.gathered  # nothing is gathered where there is one process without shards
    assert 0.6 * alone < live.peak <= 1.02 * alone


@pytest.mark.parametrize("kind", [Qwen3Config, LlamaConfig])
def test_what_a_real_layer_keeps_is_what_the_formula_says(kind, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    config, tokens = small(kind), 256
    network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    live = Live()
    live.know(network)
    before = live.now
    with live:
        out = network.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    settings = VerlSettings("x", dtype="float32", pack_tokens=tokens)
    need = policy_memory(settings, shape(config, tokens), 1)
    assert 0.75 * need.activations < live.now - before < 1.02 * need.activations
    assert out.last_hidden_state.requires_grad
