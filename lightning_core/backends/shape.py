"""How big a model is, read from its configuration alone: no weights are loaded.

Here rather than in one backend, because each must say what a model needs before it starts anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning_core.backends.chat.folder import check_folder, load_config
from lightning_core.backends.settings import LoraOptions
from lightning_core.errors import ConfigError, ModelError

DEFAULT_CONTEXT = 4096
"""Tokens, where a configuration names none."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model says how much memory it takes. Sizes are numbers of parameters or of features."""

    folder: Path
    """The transformers folder on this machine, or the name on the hub."""
    context: int
    """Tokens of prompt and reply together."""
    parameters: int
    """Tied ones counted once."""
    layers: int = 0
    layer: int = 0
    """Parameters of the largest layer."""
    hidden: int = 0
    """Features of a token between layers."""
    inner: int = 0
    """Features of a token within the feed-forward part; of all experts that it passes."""
    query: int = 0
    """Features of a token's queries, over all heads."""
    keys: int = 0
    """Features of a token's keys, over all key heads; its values have as many."""
    key_heads: int = 1
    vocabulary: int = 0
    linears: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Inputs plus outputs of the linear layers, added up by their name; the output layer is left out."""

    @property
    def outside(self) -> int:
        """Parameters outside the layers: embedding, output layer, last norm."""
        return max(0, self.parameters - self.layers * self.layer)

    def trained(self, lora: LoraOptions | None) -> int:
        """Parameters that are trained: all, or LoRA's rank * (inputs + outputs) of each layer it is on.

        A target that is no plain name of a layer counts as all of them, which is an upper bound.
        """
        if lora is None:
            return self.parameters
        targets = (lora.targets,) if isinstance(lora.targets, str) else lora.targets
        named = [self.linears[name] for name in targets if name in self.linears]
        return lora.rank * (sum(named) if len(named) == len(targets) else sum(self.linears.values()))


def measure(model: str | Path, context: int | None, *, most: int | None = None) -> Shape:
    """Read a model's configuration, also of a name on the hub, without fetching more. Without `context` it is
    what the model was made for, `most` at most.

    Raises ModelError if there is none to read, ConfigError for a context that the model does not have.
    """
    folder = check_folder(model)
    source = folder.absolute() if folder.exists() else Path(str(model))
    config, _ = load_config(str(source))
    longest = int(getattr(config.get_text_config(), "max_position_embeddings", None) or DEFAULT_CONTEXT)
    if context is not None and context > longest:
        raise ConfigError(
            f"context={context!r} is above what model {str(model)!r} was made for: {longest} tokens"
        )
    return shape_of(config, source, context or min(longest, most or longest))


def fetch(model: str | Path) -> Path:
    """The model's folder on this machine; one on the hub is fetched. Raises ModelError."""
    folder = check_folder(model)
    if folder.exists():
        return folder.absolute()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model {str(model)!r} is no folder here and can't be had from the hub: {error}; download it "
            "where there is a network, and give its folder"
        ) from error


def shape_of(config: Any, folder: Path, context: int) -> Shape:
    """The shape of a transformers configuration, from a network that has no memory behind it."""
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
    text = config.get_text_config()
    count = int(text.num_hidden_layers)
    stacks = [m for m in network.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in (stacks[0] if stacks else [])]
    heads = int(text.num_attention_heads)
    size = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    key_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    linears: dict[str, int] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not network.get_output_embeddings():
            own = name.rpartition(".")[2]
            linears[own] = linears.get(own, 0) + module.in_features + module.out_features
    return Shape(
        folder=folder,
        context=context,
        parameters=sum(p.numel() for p in network.parameters()),
        layers=count,
        layer=max(sizes, default=0),
        hidden=int(text.hidden_size),
        inner=_inner(text),
        query=heads * size,
        keys=key_heads * size,
        key_heads=key_heads,
        vocabulary=int(text.vocab_size),
        linears=MappingProxyType(linears),
    )


def _inner(config: Any) -> int:
    """Of experts only those that a token passes; at least the plain feed-forward part, where there is one."""
    plain = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    expert = int(getattr(config, "moe_intermediate_size", None) or 0)
    return max(plain, expert * int(getattr(config, "num_experts_per_tok", None) or 1))
