"""A network made ready to serve and to train: its device, and its attention by plans where it can."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel

from lightning_core.backends.local.attention import survey, use_plans
from lightning_core.backends.machine import machine_memory
from lightning_core.backends.weights.fourbit import pack
from lightning_core.backends.weights.model import Model, read_model
from lightning_core.backends.weights.sizes import keeps_state

logger = logging.getLogger(__name__)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Whose output layer is a plain product, and whose attention the fused decoder covers."""


def pick_device(device: str) -> torch.device:
    """ "auto" is CUDA where there is one, then Apple's MPS, then the CPU."""
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def memory_bytes(device: torch.device) -> int:
    """Memory of the device, free or not; without its own, the machine's or the container's share of it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return machine_memory() or 4 << 30


def load_model(
    model: str | Path, *, context: int | None = None, device: str = "auto", in_4bit: bool = False
) -> Model:
    """Load a folder (or a hub name that transformers resolves; "tiny" is the shipped model), ready to run.
    `in_4bit`: its linear layers are held so before they come to the device.

    Raises ModelError naming the folder if weights, configuration, tokenizer or chat template are missing,
    ConfigError for a network that can't be held in 4 bits.
    """
    found = read_model(model, context=context)
    if in_4bit:
        pack(found.network)
    make_ready(found.network, pick_device(device))
    return found


def make_ready(network: PreTrainedModel, device: torch.device) -> None:
    """Make a network as transformers loads it one to serve and to train, on the device."""
    network.requires_grad_(False).eval().to(device)
    _leave_temperatures(network)
    if not keeps_state(network):
        _try_plans(network)
    # cuDNN makes a plan for each shape of an attention, and prompts rarely have the same shape
    torch.backends.cuda.enable_cudnn_sdp(False)


def _leave_temperatures(network: PreTrainedModel) -> None:
    """Llama 4 scales queries by their place in the pass, from `floor_scale` on. A pack may be as long, and
    no context is (`longest_context`)."""
    for module in network.modules():
        if getattr(module, "attn_temperature_tuning", False):
            module.attn_temperature_tuning = False


def _try_plans(network: PreTrainedModel) -> None:
    """Use plans where the network runs with them. Else its own attention stays, which is slower."""
    own = network.config._attn_implementation
    try:
        use_plans(network)
        survey(network)
    except Exception as error:  # boundary: whatever a network raises with another attention function
        logger.info("%s runs with its own attention: %s", type(network).__name__, error)
        network.set_attn_implementation(own)
