"""The weights under training: the network, in full or with LoRA, and what the engine gets of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import peft
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lightning_core.backends.local.model import Model, kv_heads, parameter_count
from lightning_core.backends.settings import LoraOptions, default_learning_rate
from lightning_core.errors import ConfigError


class Policy:
    """A trainable network and the plain weights it amounts to."""

    def __init__(self, model: Model, lora: LoraOptions | None) -> None:
        self.model, self.lora = model, lora
        self.base: PreTrainedModel = model.network
        self.network: torch.nn.Module = model.network
        if lora is None:
            self.base.requires_grad_(True)
        else:
            self.network = _with_lora(self.base, lora)
        self.network.eval()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Those that are trained."""
        return [p for p in self.network.parameters() if p.requires_grad]

    @property
    def tied_names(self) -> frozenset[str]:
        """Names in the network's `state_dict` that are another name's weight."""
        return tied_names(self.base)

    @property
    def groups(self) -> int:
        """Query heads to one key/value head."""
        config = self.base.config
        return int(config.num_attention_heads // kv_heads(self.base))

    def default_learning_rate(self) -> float:
        """That of every backend, `lora.default_learning_rate`."""
        return default_learning_rate(parameter_count(self.base), self.lora)

    @torch.no_grad()
    def serving_weights(self) -> dict[str, torch.Tensor]:
        """The network's `state_dict` as it serves: with LoRA, base weights plus the adapters' product."""
        if self.lora is None:
            return dict(self.base.state_dict())
        weights = {name: w for name, w in self.base.state_dict().items() if ".lora_" not in name}
        for name, module in self.base.named_modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                weights[f"{name}.base_layer.weight"] = module.base_layer.weight + module.get_delta_weight(
                    "default"
                )
        return {name.replace(".base_layer.", "."): w for name, w in weights.items()}

    @contextmanager
    def frozen_start(self) -> Iterator[torch.nn.Module]:
        """With LoRA: the network as it was before training, without a second copy of it."""
        assert isinstance(self.network, peft.PeftModel)
        with self.network.disable_adapter():
            yield self.network


def tied_names(network: PreTrainedModel) -> frozenset[str]:
    """Names in its `state_dict` that are another name's weight."""
    seen: set[int] = set()
    tied = set()
    for name, weight in network.state_dict().items():
        if weight.data_ptr() in seen:
            tied.add(name)
        seen.add(weight.data_ptr())
    return frozenset(tied)


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
            wrapped: torch.nn.Module = peft.get_peft_model(network, config)
    except ValueError as error:
        raise ConfigError(f"lora targets {lora.targets!r} don't fit this model: {error}") from error
    return wrapped
