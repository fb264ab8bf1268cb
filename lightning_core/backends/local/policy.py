"""The weights under training: the network, in full or with LoRA, and what the engine gets of it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import peft
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lightning_core.backends.local.attention import takes_plans
from lightning_core.backends.local.model import memory_bytes
from lightning_core.backends.local.packing import (
    PassPlan,
    kept_bytes,
    logits_bytes,
    make_plan,
    recompute_layers,
)
from lightning_core.backends.settings import LoraOptions, default_critic_rate, default_learning_rate
from lightning_core.backends.weights.fourbit import plain_weights
from lightning_core.backends.weights.model import Model, parameter_count, tied_names
from lightning_core.backends.weights.sizes import ModelSize, read_size
from lightning_core.errors import ConfigError, TrainingError

WIDE, HALF = 4, 2
"""Bytes of a number in float32 and in bfloat16."""

TRIED_TOKENS = 128
"""Tokens of the pass in which layers with state are measured."""


def pass_bytes(size: ModelSize, tokens: int, pairs: int, number: int = WIDE) -> int:
    """Activations of a pass with so many pairs of tokens in attention; nothing is computed again. In bfloat16
    the pass keeps its copy of the weights too."""
    copied = number * size.layer if number == HALF else 0
    return size.layers * (size.layer_bytes(tokens, number) + number * size.heads * pairs + copied)


def activation_room(
    size: ModelSize,
    lora: LoraOptions | None,
    memory: int,
    copies: int,
    number: int = WIDE,
    logits: int = 0,
    moments: float = 2 * WIDE,
) -> int:
    """Bytes of the memory that activations may take. Adam's two moments of a weight take `moments`.

    A quarter is left for replies, their prefixes and the app, and a GiB for the libraries. Weights, the
    engine's copy, further `copies`, gradients, Adam's two moments and `logits` take their part first.
    """
    copied = (WIDE * copies + number) * size.parameters
    state = size.weight_bytes(lora) + copied + int((WIDE + moments) * size.trained(lora))
    return max(0, memory - memory // 4 - (1 << 30) - logits - state)


class Policy:
    """A trainable network and the plain weights it amounts to."""

    def __init__(self, model: Model, lora: LoraOptions | None, *, moments: float = 2 * WIDE) -> None:
        """Adam's two moments of a weight will take `moments` bytes."""
        self.model, self.lora = model, lora
        self.base: PreTrainedModel = model.network
        self._moments = moments
        self.copies = 0
        """Copies of the weights that others keep, such as a critic's: numbers for each parameter."""
        self.closing = threading.Event()
        """Set when the backend closes: an update ends before its next pass."""
        self._size = read_size(self.base, Path(model.name), model.context)
        self.network: torch.nn.Module = model.network
        if lora is None:
            self.base.requires_grad_(True)
        else:
            self.network = _with_lora(self.base, lora)
        self.network.eval()

    @property
    def in_4bit(self) -> bool:
        """Whether frozen weights are held in 4 bits."""
        return self.lora is not None and self.lora.load_in_4bit

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Returns the parameters that are trained."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def check_open(self) -> None:
        """Raise TrainingError once the backend closes; called before each pass of an update."""
        if self.closing.is_set():
            raise TrainingError("the run was stopped in the middle of an update, which was given up")

    def must_recompute(self, plan: PassPlan, *, bfloat16: bool = False) -> bool:
        """Whether the memory has no room for all activations of such a pass."""
        number = HALF if bfloat16 else WIDE
        device = self.base.device
        logits = 4 * logits_bytes(device) if device.type == "cuda" else 0
        memory = memory_bytes(device)
        room = activation_room(self._size, self.lora, memory, self.copies, number, logits, self._moments)
        return self._wider * pass_bytes(self._size, plan.tokens, plan.pairs, number) > room

    @property
    def shares_branches(self) -> bool:
        """Whether a pass computes once what several sequences begin with."""
        return takes_plans(self.base)

    @cached_property
    def _wider(self) -> float:
        """How many times what `pass_bytes` says layers keep; layers with state are measured."""
        if self.shares_branches:
            return 1.0
        places = torch.arange(min(TRIED_TOKENS, self.model.context), device=self.base.device)
        plan, trunk = make_plan(self.base, torch.full_like(places, len(places))), self.base.get_decoder()
        recompute_layers(self.base, False)
        kept = kept_bytes(lambda: plan.hidden(trunk, torch.zeros_like(places), places, places), self.base)
        return kept / pass_bytes(self._size, plan.tokens, plan.pairs)

    @property
    def tied_names(self) -> frozenset[str]:
        """Names in the network's `state_dict` that are another name's weight."""
        return tied_names(self.base)

    def default_learning_rate(self) -> float:
        """The learning rate that every backend uses by default."""
        return default_learning_rate(parameter_count(self.base), self.lora)

    def default_critic_rate(self) -> float:
        """The critic's learning rate that every backend uses by default."""
        return default_critic_rate(parameter_count(self.base), self.lora)

    def serving_weights(self) -> Mapping[str, torch.Tensor]:
        """The network's `state_dict` as it serves: with LoRA, base weights plus the adapters' product."""
        return _ServingWeights(self.base) if self.lora else dict(self.base.state_dict())

    @contextmanager
    def frozen_start(self) -> Iterator[torch.nn.Module]:
        """With LoRA: the network as it was before training, without a second copy of it."""
        assert isinstance(self.network, peft.PeftModel)
        with self.network.disable_adapter():
            yield self.network


def share_weights(network: PreTrainedModel, base: PreTrainedModel) -> None:
    """Let a plain network hold the frozen weights of one with LoRA in place of its own."""
    plain = {name.replace(".base_layer.", "."): weight for name, weight in base.named_parameters()}
    for name, weight in network.named_parameters():
        weight.data = plain[name].data


class _ServingWeights(Mapping[str, torch.Tensor]):
    """The weights with LoRA merged. A product is made when it is asked for: all take as much as the model."""

    def __init__(self, base: PreTrainedModel) -> None:
        self._adapted = {
            f"{name}.weight": module
            for name, module in base.named_modules()
            if isinstance(module, peft.tuners.lora.LoraLayer)
        }
        self._weights = plain_weights(base)
        names = [name for name in self._weights if ".lora_" not in name]
        self._names = {name.replace(".base_layer.", "."): name for name in names}

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self._weights[self._names[name]]
        if name not in self._adapted:
            return weight
        merged: torch.Tensor = weight + self._adapted[name].get_delta_weight("default")
        return merged

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _with_lora(network: PreTrainedModel, lora: LoraOptions) -> torch.nn.Module:
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = peft.LoraConfig(
        r=lora.rank,
        fan_in_fan_out=any(isinstance(m, Conv1D) for m in network.modules()),
        lora_alpha=lora.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses a name that transformers leaves behind
            warnings.filterwarnings("ignore", ".*tie_word_embeddings")  # such targets are refused below
            wrapped: torch.nn.Module = peft.get_peft_model(network, config)
    except ValueError as error:
        raise ConfigError(f"lora targets {lora.targets!r} don't fit this model: {error}") from error
    weights = network.state_dict()
    tied = {weights[name].data_ptr() for name in tied_names(network)}
    adapted = [(n, m) for n, m in network.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    if shared := [name for name, module in adapted if module.weight.data_ptr() in tied]:
        raise ConfigError(
            f"lora targets {lora.targets!r} can't hold {shared[0]!r}: its weight is also another layer's, "
            "which would not change with it; leave it out"
        )
    return wrapped
