"""How big a model is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.backends.chat.folder import check_folder, load_config
from lightning_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model says how much memory it takes."""

    folder: Path
    """The transformers folder, on this machine."""
    context: int
    """Tokens of prompt and reply together."""
    parameters: int


def measure(model: str | Path, context: int | None) -> Shape:
    """Read a model's configuration, and none of its weights. Raises ModelError, ConfigError."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = check_folder(model)
    if not folder.exists():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(model)))
    config, _ = load_config(str(folder))
    longest = int(config.max_position_embeddings)
    if context is not None and context > longest:
        raise ConfigError(
            f"context={context!r} is above what model {str(model)!r} was made for: {longest} tokens"
        )
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(config)
    return Shape(folder.absolute(), context or longest, network.num_parameters())


def check_memory(settings: Any, shape: Shape) -> None:
    """Raise ConfigError if the model can't fit."""
