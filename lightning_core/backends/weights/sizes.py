"""How big a model is, told from its configuration alone; how big a change of a tensor was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning_core.backends.settings import LoraOptions
from lightning_core.errors import ConfigError, ModelError

DEFAULT_CONTEXT = 4096
"""Tokens, where a configuration names none; the local backend takes no more unless it is told."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of what a run writes."""

    policy: int
    """One version of the weights as it serves."""
    checkpoint: int
    """Weights that are trained, and the optimizer's state."""


def many(count: int) -> str:
    """Parameters as people say them: 596.0 M, 8.19 B."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of a model that decide its memory, as numbers of parameters or of features."""

    folder: Path
    """The transformers folder on this machine, or the name on the hub."""
    architecture: str
    """The configuration's `model_type`."""
    context: int
    """Tokens of prompt and reply together."""
    parameters: int
    """Tied ones counted once."""
    layers: int
    layer: int
    """Parameters of the largest layer."""
    hidden: int
    """Features of a token between layers."""
    inner: int
    """Features of a token within the feed-forward part; of all experts that it passes."""
    query: int
    """Features of a token's queries, over all heads."""
    keys: int
    """Features of a token's keys, over all key heads; its values have as many."""
    key_heads: int
    vocabulary: int
    states: bool = False
    """Whether layers keep state outside attention."""
    linears: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Inputs plus outputs of the linear layers, added up by their name; the output layer is left out."""
    packed: int = 0
    """Weights that can be held in 4 bits."""

    @property
    def heads(self) -> int:
        """Attention heads of queries."""
        return self.query * self.key_heads // max(1, self.keys)

    def layer_bytes(self, tokens: int, number: int) -> int:
        """Bytes one layer keeps of a pass for its gradient, but for attention's weights."""
        wide, narrow = self.query + self.keys, self.hidden
        return tokens * (number * (6 * narrow + 4 * self.inner + 4 * wide) + 8 * narrow + 4 * wide)

    def trained(self, lora: LoraOptions | None) -> int:
        """Parameters that are trained: all, or LoRA's rank * (inputs + outputs) of each layer it is on.

        A target that is no plain name of a layer counts as all of them, which is an upper bound.
        """
        if lora is None:
            return self.parameters
        targets = (lora.targets,) if isinstance(lora.targets, str) else lora.targets
        named = [self.linears[name] for name in targets if name in self.linears]
        return lora.rank * (sum(named) if len(named) == len(targets) else sum(self.linears.values()))

    def weight_bytes(self, lora: LoraOptions | None) -> int:
        """Bytes of the weights while training: float32, but for what is held in 4 bits, with a scale of 4
        bytes for each block of 64."""
        packed = self.packed if lora is not None and lora.load_in_4bit else 0
        return 4 * (self.parameters - packed) + packed // 2 + packed // 16

    def disk(self, lora: LoraOptions | None) -> Disk:
        """Sizes on the disk, in float32: weights, and AdamW's two moments of those that are trained."""
        trained = self.trained(lora)
        return Disk(policy=4 * self.parameters, checkpoint=4 * trained + 8 * trained)

    def facts(self, lora: LoraOptions | None) -> tuple[tuple[str, str], ...]:
        """Returns the plan's lines about the model."""
        trained = "all weights, in float32"
        if lora is not None:
            trained = f"LoRA of rank {lora.rank}: {many(self.trained(lora))} parameters"
            trained += ", beside weights in 4 bits" if lora.load_in_4bit else ""
        return (
            ("model", f"{self.folder}, {many(self.parameters)} parameters"),
            ("context", f"{self.context:,} tokens of prompt and reply"),
            ("trained", trained),
        )


def measure(model: str | Path, context: int | None, *, most: int | None = None) -> ModelSize:
    """Read a model's configuration, also of a name on the hub, without fetching more. Without `context` it is
    what the model was made for, `most` at most.

    Raises ModelError if there is none to read, ConfigError for a context that the model does not have.
    """
    from lightning_core.backends.weights.sources import check_folder, load_config

    folder = check_folder(model)
    source = folder.absolute() if folder.exists() else Path(str(model))
    config, _ = load_config(str(source))
    longest, why = longest_context(config)
    if context is not None and context > longest:
        raise ConfigError(f"context={context!r} is above what model {str(model)!r} {why}: {longest} tokens")
    return size_of(config, source, context or min(longest, most or longest))


def longest_context(config: Any) -> tuple[int, str]:
    """The longest context of a configuration, in tokens, and why it is no longer, as in "was made for".

    Where the network turns all positions otherwise from some length on, tokens that were computed before no
    longer fit, so that length is the longest.
    """
    text = config.get_text_config()
    limits = [(int(getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT), "was made for")]
    ropes = getattr(text, "rope_parameters", None) or {}
    for rope in (ropes, *(value for value in ropes.values() if isinstance(value, dict))):
        if rope.get("rope_type") == "longrope":
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(text, "original_max_position_embeddings", None)
            if original:
                limits.append(
                    (int(original), "can be trained at: longrope's original_max_position_embeddings")
                )
    if getattr(text, "attn_temperature_tuning", False) and getattr(text, "floor_scale", None):
        limits.append((int(text.floor_scale), "can have: its attention's floor_scale"))
    return min(limits, key=lambda limit: limit[0])


def check_weights(model: str | Path) -> None:
    """Raise ModelError for a folder on this machine without weights."""
    folder = Path(model)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{str(folder)!r} has no weights: there is no *.safetensors in it; copy the whole folder, or "
            "save it again with model.save_pretrained(folder)"
        )


def size_of(config: Any, folder: Path, context: int) -> ModelSize:
    """The size of a transformers configuration, told from a network that has no memory behind it."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            network: Any = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, AttributeError, ImportError) as error:
        raise ModelError(
            f"can't tell how big model {str(folder)!r} is: {error}; give a causal language model that this "
            "version of transformers knows"
        ) from error
    return read_size(network, folder, context)


def read_size(network: Any, folder: Path, context: int) -> ModelSize:
    """The size of a transformers network."""
    import torch

    from lightning_core.backends.weights.fourbit import may_pack

    text = network.config.get_text_config()
    count = int(text.num_hidden_layers)
    stacks = [m for m in network.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    sizes = [count_numbers(layer.parameters()) for layer in (stacks[0] if stacks else [])]
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    size = int(_most(text, "head_dim") or text.hidden_size // heads)
    key_heads = int(_most(text, "num_key_value_heads") or heads)
    linears: dict[str, int] = {}
    packed = 0
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not network.get_output_embeddings():
            own = name.rpartition(".")[2]
            linears[own] = linears.get(own, 0) + module.in_features + module.out_features
            packed += module.in_features * module.out_features if may_pack(module) else 0
    return ModelSize(
        folder=folder,
        architecture=str(text.model_type),
        context=context,
        parameters=count_numbers(network.parameters()),
        layers=count,
        layer=max(sizes, default=0),
        hidden=int(text.hidden_size),
        inner=_inner(text),
        query=heads * size,
        keys=key_heads * size,
        key_heads=key_heads,
        vocabulary=int(text.vocab_size),
        states=keeps_state(network),
        linears=MappingProxyType(linears),
        packed=packed,
    )


def count_numbers(parameters: Iterable[Any]) -> int:
    """The numbers in tensors; bytes hold two of 4 bits each (`fourbit`)."""
    return sum(p.numel() if p.is_floating_point() else 2 * p.numel() for p in parameters)


def keeps_state(network: Any) -> bool:
    """Whether the past reaches a token by more than attention: linear attention, convolutions, state spaces.

    transformers says so of a class, or of the layers that its cache has for the configuration.
    """
    from transformers import DynamicCache, cache_utils

    kind: type | None = getattr(cache_utils, "LinearAttentionCacheLayerMixin", None)  # not in the first 5.x
    if network._is_stateful or kind is None:
        return bool(network._is_stateful)
    return any(isinstance(layer, kind) for layer in DynamicCache(config=network.config).layers)


def _most(config: Any, name: str) -> Any:
    """An attribute of a configuration, the largest of any layer where transformers has one for each."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # of one whose layers differ
        return max(getattr(config.per_layer_config[i], name) for i in range(config.num_hidden_layers))


def _inner(config: Any) -> int:
    """Returns the inner features of a layer. Of experts only those that a token passes count; at least the
    plain feed-forward part, where there is one."""
    sizes = _most(config, "intermediate_size") or 4 * config.hidden_size
    plain = max(sizes) if isinstance(sizes, list | tuple) else int(sizes)
    expert = int(getattr(config, "moe_intermediate_size", None) or 0)
    return max(plain, expert * int(getattr(config, "num_experts_per_tok", None) or 1))


@dataclass(frozen=True, slots=True)
class TensorChange:
    """How far one tensor moved between two versions of the weights."""

    name: str
    relative: float | None
    """Length of the difference as a share of the length before; None if only one version has it, or in
    another shape."""
    size: int
    """Numbers in it."""
