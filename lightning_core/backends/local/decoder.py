"""The engine's own copy of the weights and the forward pass over it.

`NetworkDecoder` runs any transformers causal LM. `LlamaDecoder` is the same mathematics for the Llama and
Qwen families with query/key/value and gate/up joined into one product each and the norms fused. At 1.5 M
parameters on one core a decoding step of it is 3.1, 1.9, 1.4 and 1.25 times as fast for 1, 8, 32 and 64
replies.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from lightning_core.backends.local.attention import AttentionForm, Plan, network_logits, survey, takes_plans
from lightning_core.backends.local.cache import Shape
from lightning_core.backends.local.caches import measure_traits
from lightning_core.backends.local.memory import Memory
from lightning_core.backends.local.model import FAMILIES
from lightning_core.backends.local.packed import PackedMemory, packed_memory
from lightning_core.backends.local.packing import TreePlan, make_plan
from lightning_core.backends.local.states import StateMemory
from lightning_core.backends.weights.fourbit import plain_weights, unpack

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary variants whose angles depend on the position alone."""
PAGE, LINE = 1024, 16
"""Numbers in float32 of a page of memory, and of a line of the cache."""


class Decoder(Protocol):
    """A copy of the weights, for inference."""

    def text_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """One sequence (T,) → next-token logits (T, V)."""

    def memory(self, shape: Shape, rows: int, slot_bytes: int, prefix_bytes: int) -> Memory:
        """At most so many rows within `slot_bytes`, and prefixes within `prefix_bytes`."""

    def refresh(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over new weights, named as in the network's `state_dict`."""


class NetworkDecoder:
    """The general path: a copy of the transformers network itself."""

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype) -> None:
        self._network = _serving_copy(network, dtype)

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: Plan, keep: torch.Tensor
    ) -> torch.Tensor:
        return network_logits(self._network, tokens, positions, plan, keep)

    def text_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return _text_logits(self._network, tokens)

    def memory(self, shape: Shape, rows: int, slot_bytes: int, prefix_bytes: int) -> PackedMemory:
        return packed_memory(self, shape, rows, slot_bytes, prefix_bytes)

    def refresh(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._network.load_state_dict(dict(weights))


class StateDecoder:
    """The path of networks that plans can't run, such as those with state outside attention: a copy that runs
    with its own attention."""

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype) -> None:
        self._traits = measure_traits(network)
        self.network = _serving_copy(network, dtype)

    def text_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return _text_logits(self.network, tokens)

    def memory(self, shape: Shape, rows: int, slot_bytes: int, prefix_bytes: int) -> StateMemory:
        return StateMemory(self.network, self._traits, rows, slot_bytes, prefix_bytes)

    def refresh(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.network.load_state_dict(dict(weights))


def _serving_copy(network: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    copied = copy.deepcopy(network).requires_grad_(False).eval()
    unpack(copied)
    for weight in copied.parameters():  # buffers stay: rotary frequencies lose far places else
        weight.data = weight.data.to(dtype)
    return copied


def _text_logits(network: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """One sequence (T,) → next-token logits (T, V)."""
    places = torch.arange(len(tokens), device=tokens.device)
    plan = make_plan(network, torch.full_like(tokens, len(tokens)))
    return plan.logits(network, tokens, places, places)


@dataclass(slots=True)
class _Layer:
    qkv: torch.Tensor
    """(h, (H + 2K) D), transposed for the product."""
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norm: torch.Tensor
    post_norm: torch.Tensor
    head_norm: torch.Tensor | None
    """(H + K, D): Qwen3's query norm, then its key norm, for each head."""


class LlamaDecoder:
    """The fused path for Llama- and Qwen-like networks (see `fits`)."""

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype, context: int) -> None:
        c = network.config
        self._dtype, self._eps = dtype, c.rms_norm_eps
        self._layers = c.num_hidden_layers
        self._heads, self._kv_heads = c.num_attention_heads, c.num_key_value_heads
        self._size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self._hidden = (c.hidden_size,)
        self._forms = [AttentionForm(self._size**-0.5, call.sees) for call in survey(network)]
        device = network.get_input_embeddings().weight.device
        angles = network.model.rotary_emb
        cos, sin = angles(torch.zeros(1, device=device), torch.arange(context, device=device)[None])
        half = self._size // 2
        self._cos = cos[0].to(dtype)[:, None]  # (context, 1, D)
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1).to(dtype)[:, None]
        weights = plain_weights(network)
        output = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        self._head = _turned(output, dtype)
        self._blocks = [self._layer(weights, f"model.layers.{i}.") for i in range(self._layers)]
        embedding = weights["model.embed_tokens.weight"]
        tied = output.data_ptr() == embedding.data_ptr()
        self._embedding = self._head.t() if tied else self._own(embedding)
        self._norm = self._own(weights["model.norm.weight"])

    @staticmethod
    def fits(network: PreTrainedModel) -> bool:
        """Whether the fused mathematics covers this network."""
        c = network.config
        if c.model_type not in FAMILIES or getattr(c, "hidden_act", "") != "silu":
            return False
        rope = getattr(c, "rope_parameters", None) or {}
        names = set(network.state_dict())
        biased = any(
            n.endswith(("o_proj.bias", "gate_proj.bias", "down_proj.bias", "lm_head.bias")) for n in names
        )
        return rope.get("rope_type", "default") in STATIC_ROPE and not biased

    def text_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(len(tokens), device=tokens.device)
        plan = TreePlan(torch.full_like(tokens, len(tokens)), torch.float32)
        return self.logits(tokens, places, plan, places)

    def memory(self, shape: Shape, rows: int, slot_bytes: int, prefix_bytes: int) -> PackedMemory:
        return packed_memory(self, shape, rows, slot_bytes, prefix_bytes)

    def refresh(self, weights: Mapping[str, torch.Tensor]) -> None:
        """In place, so that captured steps stay valid, and one by one: there is no second copy of all."""
        for i, block in enumerate(self._blocks):
            new = self._layer(weights, f"model.layers.{i}.")
            for name in _Layer.__slots__:
                if getattr(block, name) is not None:
                    getattr(block, name).copy_(getattr(new, name))
        embedding = weights["model.embed_tokens.weight"]
        self._head.copy_(weights.get("lm_head.weight", embedding).detach().t())
        if self._embedding.data_ptr() != self._head.data_ptr():
            self._embedding.copy_(embedding.detach())
        self._norm.copy_(weights["model.norm.weight"].detach())

    def _own(self, *parts: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.detach() for part in parts]).to(self._dtype)

    def _turned(self, *parts: torch.Tensor) -> torch.Tensor:
        return _turned(torch.cat([part.detach() for part in parts]), self._dtype)

    def _layer(self, weights: Mapping[str, torch.Tensor], at: str) -> _Layer:
        attention, mlp = f"{at}self_attn.", f"{at}mlp."
        qkv = [f"{attention}{name}_proj." for name in "qkv"]
        biased = f"{qkv[0]}bias" in weights
        norms = [
            weights[n] for n in (f"{attention}q_norm.weight", f"{attention}k_norm.weight") if n in weights
        ]
        repeats = (self._heads, self._kv_heads)
        return _Layer(
            qkv=self._turned(*(weights[f"{n}weight"] for n in qkv)),
            qkv_bias=self._own(*(weights[f"{n}bias"] for n in qkv)) if biased else None,
            out=self._turned(weights[f"{attention}o_proj.weight"]),
            gate_up=self._turned(weights[f"{mlp}gate_proj.weight"], weights[f"{mlp}up_proj.weight"]),
            down=self._turned(weights[f"{mlp}down_proj.weight"]),
            norm=self._own(weights[f"{at}input_layernorm.weight"]),
            post_norm=self._own(weights[f"{at}post_attention_layernorm.weight"]),
            head_norm=self._own(*(w.expand(n, -1) for w, n in zip(norms, repeats, strict=True)))
            if norms
            else None,
        )

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: Plan, keep: torch.Tensor
    ) -> torch.Tensor:
        x = self._embedding[tokens]  # (T, h)
        cos, sin = self._cos[positions], self._sin[positions]  # (T, 1, D)
        for index, layer in enumerate(self._blocks):
            normed = functional.rms_norm(x, self._hidden, layer.norm, self._eps)
            x.addmm_(self._attend(index, layer, normed, cos, sin, plan), layer.out)
            normed = functional.rms_norm(x, self._hidden, layer.post_norm, self._eps)
            gate, up = torch.mm(normed, layer.gate_up).chunk(2, -1)
            x.addmm_(functional.silu(gate).mul_(up), layer.down)
        if len(keep) != len(x):
            x = x[keep]
        return torch.mm(functional.rms_norm(x, self._hidden, self._norm, self._eps), self._head)

    def _attend(
        self, index: int, layer: _Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        h, k, size = self._heads, self._kv_heads, self._size
        joined = (
            torch.mm(x, layer.qkv) if layer.qkv_bias is None else torch.addmm(layer.qkv_bias, x, layer.qkv)
        )
        qkv = joined.view(-1, h + 2 * k, size)
        qk = qkv[:, : h + k]
        if layer.head_norm is not None:
            qk = functional.rms_norm(qk, (size,), None, self._eps) * layer.head_norm
        turned = torch.cat((qk[..., size // 2 :], qk[..., : size // 2]), -1)
        qk = torch.addcmul(qk * cos, turned, sin)
        return plan.attend(qk[:, :h], qk[:, h:], qkv[:, h + k :], self._forms[index]).reshape(-1, h * size)


def _turned(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(n, k) → (k, n), as a product reads it.

    On a processor no row of float32 is a whole number of pages long: numbers below one another drive each
    other out of its cache then. A product of 8 rows with SmolLM2's output layer takes 0.62 of the time.
    """
    size, columns = weight.shape[1], weight.shape[0]
    aligned = weight.device.type == "cpu" and dtype == torch.float32 and columns % PAGE == 0
    rows = torch.empty(size, columns + aligned * LINE, dtype=dtype, device=weight.device)
    return rows[:, :columns].copy_(weight.detach().t())


def make_decoder(network: PreTrainedModel, dtype: torch.dtype, context: int) -> Decoder:
    """Returns the decoder of networks with their own attention; else the fused decoder where it covers the
    network, else the general one."""
    if not takes_plans(network):
        return StateDecoder(network, dtype)
    if LlamaDecoder.fits(network):
        return LlamaDecoder(network, dtype, context)
    return NetworkDecoder(network, dtype)


@torch.no_grad()
def bfloat16_error(network: PreTrainedModel, context: int, text: Sequence[int]) -> float:
    """Nats by which an engine in bfloat16 moves the log-probability of the likeliest token, the most in
    `text`."""
    wanted, likeliest = _text_logprobs(network, None, text[:context]).max(-1, keepdim=True)
    decoder = make_decoder(network, torch.bfloat16, context)
    found = _text_logprobs(network, decoder, text[:context]).gather(-1, likeliest)
    return float((found - wanted).abs().max())


def _text_logprobs(network: PreTrainedModel, decoder: Decoder | None, text: Sequence[int]) -> torch.Tensor:
    """(T, V) after each token of the text; of the network itself where there is no decoder."""
    tokens = torch.tensor(text, device=network.get_input_embeddings().weight.device)
    logits = _text_logits(network, tokens) if decoder is None else decoder.text_logits(tokens)
    return logits.float().log_softmax(-1)
