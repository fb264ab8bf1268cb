"""Frozen linear layers in 4 bits: NF4 in blocks of 64 (QLoRA, arXiv 2305.14314), by bitsandbytes.

A weight takes half a byte, and a block a scale of four bytes more. The scales stay in float32: what was
rounded once is then rounded to itself, so every copy of the policy means the same network. Layers whose
inputs are no multiple of 64 stay as they are: on a processor bitsandbytes 0.50 reads back other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Final, TypeVar

import torch
from transformers import PreTrainedModel

from lightning_core.errors import ConfigError

L = TypeVar("L", bound=torch.nn.Module)
BLOCK: Final = 64
KIND: Final = "nf4"


class FourBitLinear(torch.nn.Linear):
    """A linear layer whose weight is frozen in 4 bits. Its `weight` holds two of them in each byte."""

    def __init__(self, plain: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        packed, state = library().functional.quantize_4bit(
            plain.weight.detach(), blocksize=BLOCK, compress_statistics=False, quant_type=KIND
        )
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.bias = plain.bias
        self.register_buffer("absmax", state.absmax, persistent=False)
        self.register_buffer("code", state.code, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(…, in) → (…, out). Its gradient unpacks the weight again, so that no unpacked one is kept."""
        device = inputs.device.type
        if torch.is_autocast_enabled(device):
            inputs = inputs.to(torch.get_autocast_dtype(device))
        bias = None if self.bias is None else self.bias.to(inputs.dtype)
        outputs: torch.Tensor = library().matmul_4bit(
            inputs, self.weight, quant_state=self._state(), bias=bias
        )
        return outputs

    def plain_weight(self) -> torch.Tensor:
        """(out, in) float32: the numbers that the 4 bits stand for."""
        found: torch.Tensor = library().functional.dequantize_4bit(self.weight, self._state())
        return found

    def _state(self) -> object:
        return library().functional.QuantState(
            absmax=self.absmax,
            shape=torch.Size((self.out_features, self.in_features)),
            code=self.code,
            blocksize=BLOCK,
            quant_type=KIND,
            dtype=torch.float32,
        )


def library() -> ModuleType:
    """The module bitsandbytes. Raises ConfigError where it is not installed."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise ConfigError(
            'load_in_4bit=True and optimizer="adamw_8bit" need bitsandbytes, which can\'t be imported here '
            f"({error}); install it with: pip install 'agent-lightning-core[bitsandbytes]'"
        ) from error
    module: ModuleType = bitsandbytes
    return module


def may_pack(layer: torch.nn.Linear) -> bool:
    """Whether a layer can be held in 4 bits."""
    return layer.in_features % BLOCK == 0


def pack(network: PreTrainedModel) -> None:
    """Hold the network's linear layers in 4 bits, all but the output layer.

    Raises ConfigError for a network without such layers.
    """
    for parent, name, layer in _linears(network):
        setattr(parent, name, FourBitLinear(layer))


@torch.no_grad()
def round_weights(network: PreTrainedModel) -> None:
    """Give the layers that `pack` would hold in 4 bits the numbers that these stand for, in float32."""
    for _, _, layer in _linears(network):
        layer.weight.copy_(FourBitLinear(layer).plain_weight())


def unpack(network: torch.nn.Module) -> None:
    """Hold in float32 what is held in 4 bits."""
    for parent, name, layer in _layers(network, FourBitLinear):
        plain = torch.nn.Linear(1, 1, bias=False)  # its own numbers are replaced
        plain.in_features, plain.out_features = layer.in_features, layer.out_features
        plain.weight = torch.nn.Parameter(layer.plain_weight(), requires_grad=False)
        plain.bias = layer.bias
        setattr(parent, name, plain)


def plain_weights(network: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """The network's `state_dict` in float32. What is held in 4 bits is unpacked when it is asked for."""
    packed = {f"{name}.weight": m for name, m in network.named_modules() if isinstance(m, FourBitLinear)}
    weights: dict[str, torch.Tensor] = network.state_dict()
    return _PlainWeights(weights, packed) if packed else weights


class _PlainWeights(Mapping[str, torch.Tensor]):
    def __init__(self, weights: Mapping[str, torch.Tensor], packed: Mapping[str, FourBitLinear]) -> None:
        self._weights, self._packed = weights, packed

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._packed[name].plain_weight() if name in self._packed else self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _linears(network: PreTrainedModel) -> list[tuple[torch.nn.Module, str, torch.nn.Linear]]:
    output = network.get_output_embeddings()
    layers = _layers(network, torch.nn.Linear)
    found = [each for each in layers if each[2] is not output and may_pack(each[2])]
    if not found:
        raise ConfigError(
            f"load_in_4bit=True: {type(network).__name__} has no layer of torch.nn.Linear with a multiple of "
            f"{BLOCK} inputs, so none can be held in 4 bits; leave it out"
        )
    return found


def _layers(network: torch.nn.Module, kind: type[L]) -> list[tuple[torch.nn.Module, str, L]]:
    """The layers of exactly this class: parent, name in it, layer."""
    return [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if type(child) is kind
    ]
