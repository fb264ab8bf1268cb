"""Pre-flight: what a run would be, and whether it fits into memory, before anything is started.

`--dry-run` prints a `RunPlan`; the verl backend makes the same estimate at its start. Only a model's
`config.json` is read. Figures are bytes: upper bounds for Qwen3's and Llama's layers, found by counting (see
tests/verl/test_memory.py); other architectures differ a little.

Training is shared by n ranks (1 in the local backend); P parameters, T of them trained (all, or LoRA's), b
bytes of a number in the forward pass (2 for bfloat16, 4 for float32), t tokens of a pass, V words:

    weights       4 P / n           float32, in shards (ZeRO stage 3; Rajbhandari et al., arXiv 1910.02054)
    gradients     4 T / n           the same
    optimizer     8 T / n           Adam's two moments
    gathered      b (2 l + 2 o) + 4 max(l, o)
                                    with shards, whole for a moment: a layer l, the next one, and what is
                                    outside of the layers o, with its gradient; then one of them in float32 to
                                    be added up over the ranks (torch's `fully_shard`)
    activations   t b h L + t (b (6 h + 4 f + 4 (q + k)) + 8 h + 4 (q + k))
                                    with checkpoints the input of each of L layers (Korthikanti et al.,
                                    arXiv 2205.05198, section 5), and all of the one that is worked on:
                                    h hidden features, f inner ones, q queries, k keys; norms in float32.
                                    Without checkpoints L times the second term
    logits        3 b t V           as they are, normalised, and their gradient
    step          4 T / n           Adam works on all tensors at once; when activations are gone
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning_core.backends.settings import LoraOptions
from lightning_core.errors import ConfigError, LightningError, ModelError

DEFAULT_CONTEXT = 4096
"""Tokens, where a configuration names none; the local backend takes no more unless it is told."""


# the machine ----------------------------------------------------------------------------------
def machine_memory() -> int | None:
    """Bytes of main memory, no more than a container may use; None where the system does not tell."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return min(machine, *_container_limits())


def _container_limits(root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Yields the memory limits of this process's control group and of the container's root, in bytes.

    https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html
    """
    yield 1 << 62
    try:
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:  # no Linux
        return
    files = {"": (root, "memory.max"), "memory": (root / "memory", "memory.limit_in_bytes")}
    for _, controllers, path in own:
        if controllers in files:
            below, name = files[controllers]
            for folder in (below, below / path.lstrip("/")):
                with suppress(OSError, ValueError):  # no such group here, or "max"
                    yield int((folder / name).read_text())


# what is told ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold at the start."""

    name: str
    holds: bool | None
    """None: it can't be told here."""
    told: str
    """The finding, or the problem and its remedy."""

    @property
    def verdict(self) -> str:
        """ "ok", "fails" or "unknown"."""
        return "unknown" if self.holds is None else "ok" if self.holds else "fails"


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of what a run writes."""

    policy: int
    """One version of the weights as it serves."""
    checkpoint: int
    """Weights that are trained, and the optimizer's state."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The facts of a planned run, in reading order."""

    facts: tuple[tuple[str, str], ...] = ()
    """Names and values."""
    checks: tuple[Check, ...] = ()
    disk: Disk | None = None
    """Sizes of what the run writes; None if the backend does not tell."""


def trial(name: str, attempt: Callable[[], str]) -> Check:
    """A check that holds unless `attempt` raises an error of this package; it returns what to say."""
    try:
        return Check(name, True, attempt())
    except LightningError as problem:
        return Check(name, False, str(problem))


def gib(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / (1 << 30):.1f} GiB" if count >= (1 << 30) / 10 else f"{count / (1 << 20):.0f} MiB"


def many(count: int) -> str:
    """Parameters as people say them: 596.0 M, 8.19 B."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


# how big a model is ---------------------------------------------------------------------------
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

    def disk(self, lora: LoraOptions | None) -> Disk:
        """Sizes on the disk, in float32: weights, and AdamW's two moments of those that are trained."""
        trained = self.trained(lora)
        return Disk(policy=4 * self.parameters, checkpoint=4 * trained + 8 * trained)

    def facts(self, lora: LoraOptions | None) -> tuple[tuple[str, str], ...]:
        """Returns the plan's lines about the model."""
        trained = "all weights, in float32"
        if lora is not None:
            trained = f"LoRA of rank {lora.rank}: {many(self.trained(lora))} parameters"
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
    from lightning_core.backends.chat.folder import check_folder, load_config

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

    text = network.config.get_text_config()
    count = int(text.num_hidden_layers)
    stacks = [m for m in network.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in (stacks[0] if stacks else [])]
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    size = int(_most(text, "head_dim") or text.hidden_size // heads)
    key_heads = int(_most(text, "num_key_value_heads") or heads)
    linears: dict[str, int] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not network.get_output_embeddings():
            own = name.rpartition(".")[2]
            linears[own] = linears.get(own, 0) + module.in_features + module.out_features
    return ModelSize(
        folder=folder,
        architecture=str(text.model_type),
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
        states=keeps_state(network),
        linears=MappingProxyType(linears),
    )


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


# how much memory it takes ---------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of each rank."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    layer: int
    """Activations of the layer that is worked on."""
    logits: int
    step: int

    @property
    def state(self) -> int:
        """Memory in use between updates, unless it is offloaded."""
        return self.weights + self.optimizer

    @property
    def peak(self) -> int:
        """The most at any moment of an update."""
        working = self.gathered + self.activations + self.logits
        return self.state + self.gradients + max(working, self.step)

    @property
    def forward(self) -> int:
        """Memory of a pass without gradients, beside the weights: no layer's activations outlast it."""
        return self.gathered + self.layer + self.logits

    def __str__(self) -> str:
        return (
            f"at most {gib(self.peak)}: weights {gib(self.weights)}, gradients {gib(self.gradients)}, Adam "
            f"{gib(self.optimizer)}, a full pass {gib(self.gathered + self.activations + self.logits)}"
        )


def training_memory(
    size: ModelSize,
    lora: LoraOptions | None,
    *,
    tokens: int,
    number: int,
    ranks: int = 1,
    checkpoints: bool = False,
    shards: bool = False,
) -> TrainingMemory:
    """Returns the memory of each rank, for passes of `tokens` tokens with numbers of `number` bytes."""
    trained, outside = size.trained(lora), max(0, size.parameters - size.layers * size.layer)
    layer = size.layer_bytes(tokens, number)
    inputs = tokens * number * size.hidden * size.layers
    gathered = 2 * number * (size.layer + outside) + 4 * max(size.layer, outside)
    return TrainingMemory(
        weights=share(4 * size.parameters, ranks),
        gradients=share(4 * trained, ranks),
        optimizer=share(8 * trained, ranks),
        gathered=gathered if shards else 0,
        activations=inputs + layer if checkpoints else size.layers * layer,
        layer=layer,
        logits=3 * number * tokens * size.vocabulary,
        step=share(4 * trained, ranks),
    )


def share(whole: int, parts: int) -> int:
    """Rounded up."""
    return -(-whole // parts)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One thing that may be too small, in bytes."""

    what: str
    """As in "GPU while training"."""
    need: int
    there: int | None
    """None: unknown."""

    @property
    def missing(self) -> int:
        return 0 if self.there is None else max(0, self.need - self.there)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """All that may be too small."""

    uses: tuple[MemoryUse, ...]

    @property
    def missing(self) -> int:
        """Bytes, in all."""
        return sum(use.missing for use in self.uses)


def check_memory(
    size: ModelSize, where: str, found: MemoryEstimate, others: Iterable[tuple[str, MemoryEstimate]]
) -> Check:
    """Whether the model fits; if not, by how much it is too little, and which settings would help: `others`
    has what they make of it."""
    if not found.missing:
        known = all(use.there is not None for use in found.uses)
        told = (
            f"{use.what} {gib(use.need)}" + ("" if use.there is None else f" of {gib(use.there)}")
            for use in found.uses
        )
        return Check("memory", True if known else None, ", ".join(told))
    told = (
        f"{use.what} needs {gib(use.need)} and has {gib(use.there or 0)}, {gib(use.missing)} too little"
        for use in found.uses
        if use.missing
    )
    return Check(
        "memory",
        False,
        f"model {size.folder.name!r} with {size.parameters / 1e9:.3g} B parameters does not fit on {where}: "
        f"{'; '.join(told)}; {_advice(found, others)}",
    )


def _advice(found: MemoryEstimate, others: Iterable[tuple[str, MemoryEstimate]]) -> str:
    enough, helps = [], []
    for text, tried in others:
        if not tried.missing:
            enough.append(text)
        elif tried.missing < 0.98 * found.missing:
            helps.append(f"{text} ({gib(found.missing - tried.missing)})")
    advice = [f"enough would be {' or '.join(enough)}"] if enough else []
    advice += [f"some help {'are' if len(helps) > 1 else 'is'} {', '.join(helps)}"] if helps else []
    return "; ".join(advice) or "take a smaller model or larger machines"
